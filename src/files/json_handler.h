// JSON of fixed shape, taken event by event: what a derived class does not expect is refused at
// once, so that hostile text costs no more memory than what was accepted. Internal to the room.
#pragma once

#include <cstdint>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ullage::files {

class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  // What was wrong, after sax_parse returned false. `first_byte` is where in the file the text
  // begins.
  std::string Message(std::int64_t first_byte) const {
    if (problem_.empty()) {
      return fmt::format("byte {}: {}", first_byte + static_cast<std::int64_t>(bad_byte_), syntax_);
    }
    return problem_;
  }

  // A name from the file as a message can show it: short, without control characters.
  static std::string Quoted(const std::string& name) {
    constexpr std::size_t kLongest = 200;
    std::string shown = name.substr(0, kLongest);
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return '"' + shown + (name.size() > kLongest ? "...\"" : "\"");
  }

  // null, booleans, negative and fractional numbers: no file of this room holds any of them.
  virtual bool Scalar(const std::string& text) = 0;

  bool null() override { return Scalar("null"); }
  bool boolean(bool value) override { return Scalar(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override { return Scalar(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return Scalar(text); }
  bool binary(binary_t&) override { return Scalar("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    bad_byte_ = position == 0 ? 0 : position - 1;  // the parser counts from 1
    syntax_ = error.what();
    return false;
  }

 protected:
  bool Refuse(const std::string& who, const std::string& what) {
    problem_ = who + " " + what;
    return false;
  }

 private:
  std::string problem_;
  std::string syntax_;
  std::size_t bad_byte_ = 0;
};

}  // namespace ullage::files
