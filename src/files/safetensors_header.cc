#include "files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDimensions = 64;
constexpr std::int64_t kLengthBytes = 8;

struct TypeEntry {
  ElementType type;
  std::string_view name;
  std::int64_t bytes;
};

constexpr std::array<TypeEntry, 17> kTypes = {{{ElementType::kF64, "F64", 8},
                                               {ElementType::kF32, "F32", 4},
                                               {ElementType::kF16, "F16", 2},
                                               {ElementType::kBF16, "BF16", 2},
                                               {ElementType::kI64, "I64", 8},
                                               {ElementType::kI32, "I32", 4},
                                               {ElementType::kI16, "I16", 2},
                                               {ElementType::kI8, "I8", 1},
                                               {ElementType::kU64, "U64", 8},
                                               {ElementType::kU32, "U32", 4},
                                               {ElementType::kU16, "U16", 2},
                                               {ElementType::kU8, "U8", 1},
                                               {ElementType::kBool, "BOOL", 1},
                                               {ElementType::kF8E4M3, "F8_E4M3", 1},
                                               {ElementType::kF8E5M2, "F8_E5M2", 1},
                                               {ElementType::kF8E8M0, "F8_E8M0", 1},
                                               {ElementType::kC64, "C64", 8}}};

const TypeEntry& EntryOf(ElementType type) {
  return kTypes[static_cast<std::size_t>(type)];
}

// Takes the header event by event, so that a hostile one is refused where it departs from the
// format and never becomes a tree in memory.
class HeaderHandler final : public JsonHandler {
 public:
  SafetensorsHeader result;

  bool key(std::string& name) override {
    switch (where_) {
      case Where::kTop:
        return BeginEntry(name);
      case Where::kMetadata:
        if (result.metadata.contains(name)) return Refuse(Quoted(name), "comes twice");
        metadata_key_ = name;
        return true;
      case Where::kTensor:
        return BeginField(name);
      default:
        return Refuse(Here(), "has a key where none belongs");
    }
  }

  bool start_object(std::size_t) override {
    switch (where_) {
      case Where::kStart:
        where_ = Where::kTop;
        return true;
      case Where::kBeforeMetadata:
        where_ = Where::kMetadata;
        return true;
      case Where::kBeforeTensor:
        where_ = Where::kTensor;
        return true;
      default:
        return Refuse(Here(), "has an object where none belongs");
    }
  }

  bool end_object() override {
    switch (where_) {
      case Where::kTop:
        where_ = Where::kEnd;
        return true;
      case Where::kMetadata:
        where_ = Where::kTop;
        return true;
      default:
        return EndTensor();
    }
  }

  bool start_array(std::size_t) override {
    if (where_ == Where::kTensor && field_ == Field::kShape)
      where_ = Where::kShape;
    else if (where_ == Where::kTensor && field_ == Field::kOffsets)
      where_ = Where::kOffsets;
    else
      return Refuse(Here(), "has a list where none belongs");
    return true;
  }

  bool end_array() override {
    where_ = Where::kTensor;
    field_ = Field::kNone;
    return true;
  }

  bool string(std::string& value) override {
    if (where_ == Where::kMetadata) {
      result.metadata.emplace(metadata_key_, value);
      return true;
    }
    if (where_ != Where::kTensor || field_ != Field::kType) {
      return Refuse(Here(), "has the string " + Quoted(value) + " where none belongs");
    }
    for (const TypeEntry& entry : kTypes) {
      if (entry.name == value) {
        tensor_.type = entry.type;
        return true;
      }
    }
    return Refuse(Here(), "has the unknown dtype " + Quoted(value));
  }

  bool number_unsigned(std::uint64_t value) override {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return Refuse(Here(), fmt::format("has the number {}, which is too large", value));
    }
    const auto number = static_cast<std::int64_t>(value);
    if (where_ == Where::kShape) {
      if (tensor_.shape.size() == kMaxDimensions) {
        return Refuse(Here(), fmt::format("has more than {} dimensions", kMaxDimensions));
      }
      tensor_.shape.push_back(number);
      return true;
    }
    if (where_ == Where::kOffsets) {
      if (offset_count_ == offsets_.size()) return Refuse(Here(), "has more than two data_offsets");
      offsets_[offset_count_++] = number;
      return true;
    }
    return Refuse(Here(), fmt::format("has the number {} where none belongs", value));
  }

  bool Scalar(const std::string& text) override {
    return Refuse(Here(), fmt::format("has {}; whole numbers from 0, strings, lists and objects "
                                      "are all that a header holds",
                                      text));
  }

 private:
  enum class Where {
    kStart,
    kTop,
    kBeforeMetadata,
    kMetadata,
    kBeforeTensor,
    kTensor,
    kShape,
    kOffsets,
    kEnd
  };
  enum class Field { kNone, kType, kShape, kOffsets };

  std::string Here() const {
    if (where_ == Where::kMetadata || where_ == Where::kBeforeMetadata) return "__metadata__";
    return where_ == Where::kStart || where_ == Where::kTop ? "the header"
                                                            : "tensor " + Quoted(tensor_.name);
  }

  bool BeginEntry(const std::string& name) {
    if (!names_.insert(name).second) return Refuse(Quoted(name), "comes twice");
    if (name == "__metadata__") {
      where_ = Where::kBeforeMetadata;
      return true;
    }
    tensor_ = TensorInfo();
    tensor_.name = name;
    offset_count_ = 0;
    seen_.fill(false);
    where_ = Where::kBeforeTensor;
    return true;
  }

  bool BeginField(const std::string& name) {
    if (name == "dtype")
      field_ = Field::kType;
    else if (name == "shape")
      field_ = Field::kShape;
    else if (name == "data_offsets")
      field_ = Field::kOffsets;
    else
      return Refuse(Here(), "has the unknown key " + Quoted(name));
    bool& seen = seen_[static_cast<std::size_t>(field_)];
    if (seen) return Refuse(Here(), "has " + name + " twice");
    seen = true;
    return true;
  }

  bool EndTensor() {
    if (!(seen_[1] && seen_[2] && seen_[3]) || offset_count_ != offsets_.size()) {
      return Refuse(Here(), "needs dtype, shape and two data_offsets");
    }
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (begin > end) {
      return Refuse(Here(),
                    fmt::format("has data_offsets [{}, {}], which run backwards", begin, end));
    }
    tensor_.offset = begin;
    tensor_.bytes = end - begin;
    result.tensors.push_back(std::move(tensor_));
    tensor_ = TensorInfo();
    where_ = Where::kTop;
    return true;
  }

  Where where_ = Where::kStart;
  Field field_ = Field::kNone;
  std::unordered_set<std::string> names_;
  std::string metadata_key_;
  TensorInfo tensor_;
  std::array<bool, 4> seen_{};  // by Field
  std::array<std::int64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;
};

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw IoError(path + ": " + what,
                "the file is damaged or no safetensors file: fetch or write it again");
}

}  // namespace

std::int64_t ElementBytes(ElementType type) {
  return EntryOf(type).bytes;
}
std::string_view Name(ElementType type) {
  return EntryOf(type).name;
}

ElementType ToElementType(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return ElementType::kBF16;
    case DType::kFloat16:
      return ElementType::kF16;
    default:
      return ElementType::kF32;
  }
}

std::string FormatShape(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::int64_t CheckedNumel(const std::vector<std::int64_t>& shape, ElementType type) {
  std::int64_t bytes = ElementBytes(type);
  bool overflow = false;
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) throw ConfigError("the shape " + FormatShape(shape) + " is negative");
    empty = empty || dimension == 0;
    overflow =
        overflow || __builtin_mul_overflow(bytes, std::max<std::int64_t>(dimension, 1), &bytes);
  }
  // Also when another dimension is 0: a stride of such a shape overflows all the same.
  if (overflow) {
    throw ConfigError(fmt::format("the shape {} has more than 2^63 bytes", FormatShape(shape)));
  }
  return empty ? 0 : bytes / ElementBytes(type);
}

SafetensorsHeader ParseHeader(const std::string& path, std::string_view text,
                              std::int64_t data_bytes) {
  if (text.empty() || text.front() != '{') {
    Fail(path, fmt::format("byte {}: expected '{{', the start of the JSON header", kLengthBytes));
  }
  HeaderHandler handler;
  if (!json::sax_parse(text.begin(), text.end(), &handler)) {
    Fail(path, handler.Message(kLengthBytes));
  }
  SafetensorsHeader header = std::move(handler.result);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.offset, a.bytes, std::string_view(a.name)) <
           std::tuple(b.offset, b.bytes, std::string_view(b.name));
  });
  std::int64_t expected = 0;
  for (TensorInfo& tensor : header.tensors) {
    const std::string who = "tensor " + JsonHandler::Quoted(tensor.name);
    if (tensor.offset != expected) {
      Fail(path, fmt::format("{} starts at data byte {}, expected {}: tensors must follow each "
                             "other without overlap or hole",
                             who, tensor.offset, expected));
    }
    if (tensor.bytes > data_bytes - tensor.offset) {
      Fail(path, fmt::format("{} has data_offsets [{}, {}], but the file holds {} bytes of data",
                             who, tensor.offset, tensor.offset + tensor.bytes, data_bytes));
    }
    try {
      tensor.numel = CheckedNumel(tensor.shape, tensor.type);
    } catch (const ConfigError& error) {
      Fail(path, who + ": " + error.what());
    }
    if (tensor.numel * ElementBytes(tensor.type) != tensor.bytes) {
      Fail(path, fmt::format("{} of shape {} and type {} needs {} bytes, its data_offsets span {}",
                             who, FormatShape(tensor.shape), Name(tensor.type),
                             tensor.numel * ElementBytes(tensor.type), tensor.bytes));
    }
    expected += tensor.bytes;
    tensor.offset += kLengthBytes + static_cast<std::int64_t>(text.size());
  }
  if (expected != data_bytes) {
    Fail(path, fmt::format("the tensors end at data byte {}, but the file holds {} bytes of data",
                           expected, data_bytes));
  }
  return header;
}

std::string FormatHeader(const std::vector<TensorInfo>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::int64_t offset = 0;
  std::string text;
  // Entry by entry, so that the header lists the tensors in the order of their bytes.
  const auto add = [&text](const std::string& key, const json& value) {
    text += (text.empty() ? "{" : ",") + json(key).dump() + ":" + value.dump();
  };
  if (!metadata.empty()) add("__metadata__", metadata);
  for (const TensorInfo& tensor : tensors) {
    add(tensor.name, {{"dtype", Name(tensor.type)},
                      {"shape", tensor.shape},
                      {"data_offsets", {offset, offset + tensor.bytes}}});
    offset += tensor.bytes;
  }
  text += text.empty() ? "{}" : "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i));
  }
  return length + text;
}

}  // namespace ullage::files
