#include "config/json_reader.h"

#include <string>

#include <gtest/gtest.h>

#include "expect_error.h"

namespace ullage::config {
namespace {

TEST(JsonReader, TakesBothKindsOfComments) {
  const nlohmann::json root = ReadJson("// head\n{\"a\": /* why */ 1, // tail\n \"b\": [2]}", "x");
  EXPECT_EQ(root["a"], 1);
  EXPECT_EQ(root["b"][0], 2);
}

TEST(JsonReader, TakesAByteOrderMark) {
  EXPECT_EQ(ReadJson("\xEF\xBB\xBF{\"a\": 1}", "x")["a"], 1);
}

TEST(JsonReader, KeepsNestedValuesInTheirPlaces) {
  const nlohmann::json root = ReadJson(R"({"a": {"b": [1, {"c": null}, true]}, "d": "e"})", "x");
  EXPECT_EQ(root.dump(), R"({"a":{"b":[1,{"c":null},true]},"d":"e"})");
}

TEST(JsonReader, NamesFileAndByteOfASyntaxError) {
  // The second colon stands at byte 7, counted from 0.
  const std::string message = ConfigErrorOf("{\"a\" : : 1}");
  EXPECT_NE(message.find("ds.json: byte 7: not JSON: "), std::string::npos) << message;
  EXPECT_NE(message.find("unexpected ':'"), std::string::npos) << message;
  EXPECT_NE(message.find("hint: settings are JSON"), std::string::npos) << message;
}

TEST(JsonReader, RefusesATrailingComma) {
  const std::string message = ConfigErrorOf(R"({"steps_per_print": 5,})");
  EXPECT_NE(message.find("byte 22"), std::string::npos) << message;
}

TEST(JsonReader, NamesAKeyThatStandsTwiceAtTheTop) {
  const std::string message = ConfigErrorOf(R"({"a": 1, "a": 2})");
  EXPECT_EQ(FirstLine(message), "ds.json: byte 12: the key \"a\" stands twice in one section");
}

TEST(JsonReader, NamesAKeyThatStandsTwiceFurtherDown) {
  const std::string message =
      ConfigErrorOf(R"({"ullage": {"parameter_groups": [{"lr": 1, "lr": 1}]}})");
  EXPECT_NE(message.find("the key \"lr\" stands twice"), std::string::npos) << message;
}

TEST(JsonReader, TheSameKeyInTwoSectionsIsNoDuplicate) {
  EXPECT_NO_THROW(Settings::FromText(R"({"fp16": {"enabled": false}, "bf16": {"enabled": true}})"));
}

TEST(JsonReader, RefusesWhatIsNoObject) {
  EXPECT_NE(ConfigErrorOf("[1]").find("one JSON object, not array"), std::string::npos);
  EXPECT_NE(ConfigErrorOf("3").find("one JSON object, not number"), std::string::npos);
  EXPECT_NE(ConfigErrorOf("null").find("one JSON object, not null"), std::string::npos);
}

TEST(JsonReader, RefusesAnEmptyText) {
  EXPECT_NE(ConfigErrorOf("").find("ds.json: byte 0: not JSON"), std::string::npos);
  EXPECT_NE(ConfigErrorOf("  // nothing").find("not JSON"), std::string::npos);
}

TEST(JsonReader, RefusesEveryTruncationOfAFile) {
  const std::string whole =
      R"({"zero_optimization": {"stage": 3}, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}})";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(Settings::FromText(whole.substr(0, size)), ConfigError) << size;
  }
  EXPECT_EQ(Settings::FromText(whole).zero.stage, 3);
}

TEST(JsonReader, RefusesDeepNestingWithoutRecursing) {
  for (const char* bracket : {"[", "{\"a\":"}) {
    std::string text = "{\"a\":";
    for (int i = 0; i < 500'000; ++i) text += bracket;
    const std::string message = ConfigErrorOf(text);
    EXPECT_NE(message.find("nested deeper than 64 levels"), std::string::npos) << message;
  }
}

TEST(JsonReader, RefusesNumbersBeyondADouble) {
  EXPECT_NE(ConfigErrorOf(R"({"gradient_clipping": 1e400})").find("byte"), std::string::npos);
}

TEST(JsonReader, RefusesIntegersBeyond63Bits) {
  for (const char* number : {"9223372036854775808", "1e30", "123456789012345678901234567890"}) {
    const std::string text =
        std::string(R"({"zero_optimization": {"sub_group_size": )") + number + "}}";
    EXPECT_NE(ConfigErrorOf(text).find("zero_optimization.sub_group_size: "), std::string::npos);
  }
}

TEST(JsonReader, RefusesTextThatIsNotUtf8AndStaysPrintable) {
  const std::string message = ConfigErrorOf("{\"a\xFF\xFE\": 1}");
  EXPECT_NE(message.find("ds.json: byte 3: not JSON"), std::string::npos) << message;
  for (const char c : message) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
}

TEST(JsonReader, RefusesMoreBytesThanSettingsCanBe) {
  const std::string text = "{\"" + std::string(10'000'000, 'k') + "\": 1}";
  EXPECT_EQ(FirstLine(ConfigErrorOf(text)),
            "ds.json: 10000007 bytes are more than settings can be; allowed: 4194304");
}

TEST(JsonReader, ShortensAMegabyteOfKeyInTheMessage) {
  const std::string message = ConfigErrorOf("{\"" + std::string(1'000'000, 'k') + "\": 1}");
  EXPECT_NE(message.find("kkk...: unknown key"), std::string::npos);
  EXPECT_LT(message.size(), 400u);
}

TEST(JsonReader, ShortensAMegabyteOfValueInTheMessage) {
  const std::string message =
      ConfigErrorOf("{\"gradient_clipping\": \"" + std::string(1'000'000, 'v') + "\"}");
  EXPECT_NE(message.find("vvv... is not allowed"), std::string::npos);
  EXPECT_LT(message.size(), 400u);
}

TEST(Shorten, NeverCutsACharacter) {
  EXPECT_EQ(Shorten("a\u00e9\u00e9", 4), "a\u00e9...");
  EXPECT_EQ(Shorten("a\nb"), "a?b");
  EXPECT_EQ(Shorten("\xC3"), "?");
}

}  // namespace
}  // namespace ullage::config
