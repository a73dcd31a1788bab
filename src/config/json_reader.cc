#include "config/json_reader.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::config {
namespace {

using nlohmann::json;

// Tells how far the parser has read, which its callbacks do not.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Builds the document, and refuses what the parser alone would let through.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(std::string_view text, const std::string& origin)
      : text_(text), origin_(origin), reached_(text.data()) {}

  json Read() {
    json::sax_parse(CountingIterator(text_.data(), &reached_),
                    CountingIterator(text_.data() + text_.size(), &reached_), this,
                    json::input_format_t::json, /*strict=*/true, /*ignore_comments=*/true);
    return std::move(root_);
  }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { Refuse("binary data"); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& value) override {
    if (open_.back()->contains(value)) {
      Refuse(fmt::format("the key \"{}\" stands twice in one section", Shorten(value)));
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text starts with its own error number and position.
    std::string_view what = error.what();
    if (const std::size_t start = what.find(": "); start != what.npos)
      what.remove_prefix(start + 2);
    throw ConfigError(fmt::format("{}: byte {}: not JSON: {}", origin_,
                                  position == 0 ? 0 : position - 1, Shorten(what, 300)),
                      "settings are JSON; // and /* */ comments are allowed, commas before a "
                      "closing bracket are not");
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw ConfigError(fmt::format("{}: byte {}: {}", origin_, reached_ - text_.data(), why));
  }

  json* Put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Add(json value) {
    Put(std::move(value));
    return true;
  }

  bool Open(json value) {
    if (open_.size() == kDeepestNesting) {
      Refuse(fmt::format("nested deeper than {} levels", kDeepestNesting));
    }
    open_.push_back(Put(std::move(value)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& origin_;
  const char* reached_;
  json root_;
  std::vector<json*> open_;  // stable: a parent does not change while its child is open
  std::string key_;
};

// Length of the UTF-8 sequence at the start of `text`, or 0 when it is none.
std::size_t SequenceLength(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

json ReadJson(std::string_view text, const std::string& origin) {
  if (text.size() > kLargestSettingsBytes) {
    throw ConfigError(fmt::format("{}: {} bytes are more than settings can be; allowed: {}", origin,
                                  text.size(), kLargestSettingsBytes),
                      "is this the right file?");
  }
  json root = Builder(text, origin).Read();
  if (!root.is_object()) {
    throw ConfigError(
        fmt::format("{}: byte 0: settings are one JSON object, not {}", origin, root.type_name()),
        "start with { and end with }");
  }
  return root;
}

std::string Shorten(std::string_view text, std::size_t limit) {
  std::string line;
  while (!text.empty()) {
    const std::size_t length = SequenceLength(text);
    const std::size_t used = length == 0 ? 1 : length;
    if (line.size() + used > limit) return line + "...";
    const bool control = static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7F;
    line += length == 0 || control ? "?" : std::string(text.substr(0, used));
    text.remove_prefix(used);
  }
  return line;
}

std::string Show(const json& value) {
  if (value.is_object() || value.is_array()) {
    // A list of a few plain values is worth showing; anything larger is named by its kind.
    const bool small = value.is_array() && value.size() <= 8 &&
                       std::none_of(value.begin(), value.end(),
                                    [](const json& item) { return item.is_structured(); });
    if (!small) return value.is_array() ? "a list" : "a section";
  }
  return Shorten(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace ullage::config
