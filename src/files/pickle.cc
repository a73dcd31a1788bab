#include "files/pickle.h"

#include <bit>

#include <fmt/format.h>

#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr std::string_view NameOf(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInt:
      return "an integer";
    case PickleKind::kBigInt:
      return "an integer of more than 64 bits";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kString:
      return "a string";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kClass:
      return "a class";
    case PickleKind::kObject:
      return "an object";
    case PickleKind::kStorage:
      return "a storage";
    default:
      return "a tensor";
  }
}

}  // namespace

const std::vector<PickleData::Ref>* PickleValue::Items() const {
  switch (kind()) {
    case PickleKind::kTuple:
    case PickleKind::kList:
    case PickleKind::kSet:
    case PickleKind::kDict:
      return &data_->lists[node().index];
    default:
      return nullptr;
  }
}

std::string PickleValue::Describe() const {
  const std::string name(NameOf(kind()));
  if (kind() == PickleKind::kClass || kind() == PickleKind::kObject) {
    return name + " " + JsonHandler::Quoted(ClassName());
  }
  if (kind() == PickleKind::kInt) return fmt::format("the integer {}", node().bits);
  return Items() != nullptr ? fmt::format("{} of {}", name, size()) : name;
}

void PickleValue::Unexpected(std::string_view what, std::string_view expected) const {
  throw IoError(fmt::format("{}: {} is {}, expected {}", data_->path, what, Describe(), expected),
                "check that the file is of the kind that its place and name say");
}

void PickleValue::ExpectKind(PickleKind expected, std::string_view what) const {
  if (kind() != expected) Unexpected(what, NameOf(expected));
}

std::int64_t PickleValue::Integer(std::string_view what) const {
  if (kind() == PickleKind::kInt || kind() == PickleKind::kBool) return node().bits;
  if (kind() == PickleKind::kObject) {
    const PickleValue arguments = At(data_->objects[node().index].arguments);
    if (arguments.size() == 1 && arguments[0].kind() == PickleKind::kInt) {
      return arguments[0].node().bits;
    }
  }
  Unexpected(what, "an integer");
}

double PickleValue::Number(std::string_view what) const {
  if (kind() == PickleKind::kFloat) return std::bit_cast<double>(node().bits);
  if (kind() != PickleKind::kInt) Unexpected(what, "a number");
  return static_cast<double>(node().bits);
}

bool PickleValue::Bool(std::string_view what) const {
  ExpectKind(PickleKind::kBool, what);
  return node().bits != 0;
}

const std::string& PickleValue::String(std::string_view what) const {
  ExpectKind(PickleKind::kString, what);
  return data_->texts[node().index];
}

const PickledTensor& PickleValue::Tensor(std::string_view what) const {
  ExpectKind(PickleKind::kTensor, what);
  return data_->tensors[node().index];
}

const std::string& PickleValue::ClassName() const {
  static const std::string kNothing;
  if (kind() == PickleKind::kClass) return data_->texts[node().index];
  if (kind() == PickleKind::kObject) return At(data_->objects[node().index].class_).ClassName();
  return kNothing;
}

std::size_t PickleValue::size() const {
  const auto* items = Items();
  if (items == nullptr) return 0;
  return kind() == PickleKind::kDict ? items->size() / 2 : items->size();
}

PickleValue PickleValue::operator[](std::size_t i) const {
  return At(Items()->at(i));
}

PickleValue PickleValue::KeyAt(std::size_t i) const {
  return At(Items()->at(2 * i));
}

PickleValue PickleValue::ValueAt(std::size_t i) const {
  return At(Items()->at(2 * i + 1));
}

std::optional<PickleValue> PickleValue::Find(std::string_view key) const {
  const auto* items = Items();
  if (kind() == PickleKind::kObject) {
    const PickleData::Object& object = data_->objects[node().index];
    const PickleValue state = At(object.state);
    if (state.kind() == PickleKind::kDict) {
      if (const auto found = state.Find(key)) return found;
    }
    items = object.mapping ? &data_->lists[object.items] : nullptr;
  } else if (kind() != PickleKind::kDict) {
    items = nullptr;
  }
  if (items == nullptr) return std::nullopt;
  for (std::size_t i = items->size(); i >= 2; i -= 2) {
    const PickleData::Node& name = data_->nodes[(*items)[i - 2]];
    if (name.kind == PickleKind::kString && data_->texts[name.index] == key) {
      return At((*items)[i - 1]);
    }
  }
  return std::nullopt;
}

PickleValue PickleValue::Get(std::string_view key) const {
  if (const auto found = Find(key)) return *found;
  throw IoError(fmt::format("{}: {} has no \"{}\"", data_->path, Describe(), key),
                "check that the file is of the kind that its place and name say");
}

}  // namespace ullage::files
