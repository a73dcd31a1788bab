#include "files/pickle_reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include <fmt/format.h>

#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxDimensionsOfAll = 4'000'000;

struct NamedType {
  std::string_view storage;  // class of storages, or empty
  std::string_view dtype;
  ElementType type;
};

constexpr std::array<NamedType, 17> kTypes = {{
    {"torch.DoubleStorage", "torch.float64", ElementType::kF64},
    {"torch.FloatStorage", "torch.float32", ElementType::kF32},
    {"torch.HalfStorage", "torch.float16", ElementType::kF16},
    {"torch.BFloat16Storage", "torch.bfloat16", ElementType::kBF16},
    {"torch.LongStorage", "torch.int64", ElementType::kI64},
    {"torch.IntStorage", "torch.int32", ElementType::kI32},
    {"torch.ShortStorage", "torch.int16", ElementType::kI16},
    {"torch.CharStorage", "torch.int8", ElementType::kI8},
    {"torch.ByteStorage", "torch.uint8", ElementType::kU8},
    {"torch.BoolStorage", "torch.bool", ElementType::kBool},
    {"torch.ComplexFloatStorage", "torch.complex64", ElementType::kC64},
    {"", "torch.uint16", ElementType::kU16},
    {"", "torch.uint32", ElementType::kU32},
    {"", "torch.uint64", ElementType::kU64},
    {"", "torch.float8_e4m3fn", ElementType::kF8E4M3},
    {"", "torch.float8_e5m2", ElementType::kF8E5M2},
    {"", "torch.float8_e8m0fnu", ElementType::kF8E8M0},
}};

std::optional<ElementType> TypeOfStorage(std::string_view name) {
  if (name == "torch.storage.UntypedStorage" || name == "torch.UntypedStorage") {
    return ElementType::kU8;
  }
  for (const NamedType& entry : kTypes) {
    if (!entry.storage.empty() && entry.storage == name) return entry.type;
  }
  return std::nullopt;
}

std::optional<ElementType> TypeOfName(std::string_view name) {
  for (const NamedType& entry : kTypes) {
    if (entry.dtype == name) return entry.type;
  }
  return std::nullopt;
}

void Limit(std::size_t count, std::size_t most, const char* what) {
  if (count > most) throw PickleRefusal(fmt::format("more than {} {}", most, what));
}

// Whether the elements follow each other, and the index of the last one. What is never added up,
// the offset of nothing and the stride of a single element, may be any number in the file: 0 here.
void Measure(PickledTensor& tensor) {
  if (tensor.numel == 0) tensor.offset = 0;
  std::int64_t expected = 1;
  std::int64_t last = tensor.offset;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    const std::int64_t size = tensor.shape[i];
    if (size > 1) {
      tensor.contiguous = tensor.contiguous && tensor.strides[i] == expected;
      std::int64_t way = 0;
      if (__builtin_mul_overflow(size - 1, tensor.strides[i], &way) ||
          __builtin_add_overflow(last, way, &last)) {
        throw PickleRefusal("the strides of a tensor overflow");
      }
    } else {
      tensor.strides[i] = 0;
    }
    expected *= std::max<std::int64_t>(size, 1);  // cannot overflow: CheckedNumel counted it
  }
  if (tensor.numel <= 1) tensor.contiguous = true;
  tensor.last = last;
}

}  // namespace

PickleBuilder::PickleBuilder() {
  Add({.kind = PickleKind::kNone});
  Add({.kind = PickleKind::kBool, .bits = 1});
  Add({.kind = PickleKind::kBool, .bits = 0});
}

PickleBuilder::Ref PickleBuilder::Add(PickleData::Node node) {
  Limit(data_.nodes.size() + 1, kMaxPickleValues, "values");
  data_.nodes.push_back(node);
  return static_cast<Ref>(data_.nodes.size() - 1);
}

void PickleBuilder::CountItems(std::size_t count) {
  items_ += count;
  Limit(items_, kMaxPickleItems, "items");
}

PickleBuilder::Ref PickleBuilder::Integer(std::int64_t value) {
  return Add({.kind = PickleKind::kInt, .bits = value});
}

PickleBuilder::Ref PickleBuilder::Float(double value) {
  return Add({.kind = PickleKind::kFloat, .bits = std::bit_cast<std::int64_t>(value)});
}

PickleBuilder::Ref PickleBuilder::Text(PickleKind kind, std::string text) {
  text_bytes_ += text.size();
  Limit(text_bytes_, kMaxPickleTextBytes, "bytes of text");
  const Ref ref = Add({.kind = kind, .index = static_cast<Ref>(data_.texts.size())});
  data_.texts.push_back(std::move(text));
  return ref;
}

PickleBuilder::Ref PickleBuilder::Container(PickleKind kind, std::vector<Ref> items) {
  CountItems(items.size());
  const Ref ref = Add({.kind = kind, .index = static_cast<Ref>(data_.lists.size())});
  data_.lists.push_back(std::move(items));
  return ref;
}

PickleBuilder::Ref PickleBuilder::Object(Ref class_, Ref arguments) {
  if (node(class_).kind != PickleKind::kClass) {
    throw PickleRefusal("calls " + Value(class_).Describe() + ", expected a class by its name");
  }
  if (node(arguments).kind != PickleKind::kTuple) {
    throw PickleRefusal("the arguments are " + Value(arguments).Describe() + ", expected a tuple");
  }
  const Ref ref =
      Add({.kind = PickleKind::kObject, .index = static_cast<Ref>(data_.objects.size())});
  data_.objects.push_back({.class_ = class_, .arguments = arguments, .state = kNone});
  return ref;
}

void PickleBuilder::Append(Ref container, const Ref* first, std::size_t count) {
  CountItems(count);
  std::vector<Ref>& to = data_.lists[node(container).index];
  to.insert(to.end(), first, first + count);
}

bool PickleBuilder::AppendToObject(Ref ref, const std::vector<Ref>& items, bool mapping) {
  CountItems(items.size());
  PickleData::Object& object = data_.objects[node(ref).index];
  if (!object.has_items) {
    object.has_items = true;
    object.mapping = mapping;
    object.items = static_cast<Ref>(data_.lists.size());
    data_.lists.emplace_back();
  } else if (object.mapping != mapping) {
    throw PickleRefusal("an object with items and with keys");
  }
  std::vector<Ref>& to = data_.lists[object.items];
  to.insert(to.end(), items.begin(), items.end());
  return true;
}

const std::string& PickleBuilder::ClassName(Ref ref) const {
  if (node(ref).kind != PickleKind::kClass) {
    throw PickleRefusal("found " + Value(ref).Describe() + ", expected a class by its name");
  }
  return data_.texts[node(ref).index];
}

std::optional<PickleBuilder::Ref> PickleBuilder::Rebuild(const std::string& name,
                                                         const std::vector<Ref>& arguments) {
  if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor") {
    return Tensor(arguments, false);
  }
  if (name == "torch._utils._rebuild_tensor_v3") return Tensor(arguments, true);
  if (name == "torch._utils._rebuild_parameter" ||
      name == "torch._utils._rebuild_parameter_with_state") {
    if (arguments.empty() || node(arguments[0]).kind != PickleKind::kTensor) {
      throw PickleRefusal(name + " needs a tensor");
    }
    return arguments[0];
  }
  return std::nullopt;
}

PickleBuilder::Ref PickleBuilder::Call(Ref callable, Ref arguments) {
  if (node(arguments).kind != PickleKind::kTuple) {
    throw PickleRefusal("the arguments are " + Value(arguments).Describe() + ", expected a tuple");
  }
  const std::string& name = ClassName(callable);
  const std::vector<Ref> given = items(arguments);
  if (name == "collections.OrderedDict") return OrderedDict(given);
  if (const auto tensor = Rebuild(name, given)) return *tensor;
  // (function, class, arguments, attributes): a tensor that somebody hung attributes on. Other
  // classes may mean something else by their bytes.
  if (name == "torch._tensor._rebuild_from_type_v2" && given.size() == 4 &&
      node(given[2]).kind == PickleKind::kTuple) {
    const std::string& type = ClassName(given[1]);
    if (type == "torch.Tensor" || type == "torch.nn.parameter.Parameter") {
      const std::vector<Ref> inner = items(given[2]);
      if (const auto tensor = Rebuild(ClassName(given[0]), inner)) return *tensor;
    }
  }
  if (name == "torch.Size") {
    if (given.size() != 1 || node(given[0]).kind != PickleKind::kTuple) {
      throw PickleRefusal("torch.Size needs one tuple");
    }
    return given[0];
  }
  if (name == "builtins.set" || name == "__builtin__.set") return Set(given);
  return Object(callable, arguments);
}

PickleBuilder::Ref PickleBuilder::OrderedDict(const std::vector<Ref>& arguments) {
  const Ref dict = Container(PickleKind::kDict, {});
  if (arguments.empty()) return dict;
  if (arguments.size() != 1 || node(arguments[0]).kind != PickleKind::kList) {
    throw PickleRefusal("collections.OrderedDict takes nothing or a list of pairs");
  }
  const std::vector<Ref> pairs = items(arguments[0]);
  for (const Ref pair : pairs) {
    const PickleKind kind = node(pair).kind;
    if ((kind != PickleKind::kTuple && kind != PickleKind::kList) || items(pair).size() != 2) {
      throw PickleRefusal("collections.OrderedDict takes nothing or a list of pairs");
    }
    const std::vector<Ref> both = items(pair);
    Append(dict, both.data(), 2);
  }
  return dict;
}

PickleBuilder::Ref PickleBuilder::Set(const std::vector<Ref>& arguments) {
  if (arguments.size() != 1 || node(arguments[0]).kind != PickleKind::kList) {
    throw PickleRefusal("set needs one list");
  }
  return Container(PickleKind::kSet, items(arguments[0]));
}

std::int64_t PickleBuilder::Size(Ref ref, const char* what) {
  if (node(ref).kind != PickleKind::kInt || node(ref).bits < 0) {
    throw PickleRefusal(
        fmt::format("the {} is {}, expected a number from 0", what, Value(ref).Describe()));
  }
  return node(ref).bits;
}

std::vector<std::int64_t> PickleBuilder::Numbers(Ref tuple, const char* what) {
  if (node(tuple).kind != PickleKind::kTuple) {
    throw PickleRefusal(
        fmt::format("the {} is {}, expected a tuple", what, Value(tuple).Describe()));
  }
  Limit(items(tuple).size(), kMaxDimensions, "dimensions of a tensor");
  std::vector<std::int64_t> numbers;
  for (const Ref item : items(tuple)) numbers.push_back(Size(item, what));
  return numbers;
}

// (storage, offset, size, stride, ...); the rest says what autograd did with it.
PickleBuilder::Ref PickleBuilder::Tensor(const std::vector<Ref>& arguments, bool v3) {
  if (arguments.size() < (v3 ? 7u : 4u)) throw PickleRefusal("a tensor with too few arguments");
  if (node(arguments[0]).kind != PickleKind::kStorage) {
    throw PickleRefusal("a tensor made of " + Value(arguments[0]).Describe() +
                        ", expected a storage");
  }
  PickledTensor tensor;
  tensor.storage = node(arguments[0]).index;
  tensor.type = static_cast<ElementType>(node(arguments[0]).bits);
  if (v3) {
    const std::string& name = ClassName(arguments[6]);
    const auto type = TypeOfName(name);
    if (!type) throw PickleRefusal("a tensor of the type " + JsonHandler::Quoted(name));
    tensor.type = *type;
  }
  tensor.offset = Size(arguments[1], "offset of a tensor");
  tensor.shape = Numbers(arguments[2], "shape of a tensor");
  tensor.strides = Numbers(arguments[3], "strides of a tensor");
  if (tensor.shape.size() != tensor.strides.size()) {
    throw PickleRefusal(fmt::format("a tensor of shape {} with strides {}",
                                    FormatShape(tensor.shape), FormatShape(tensor.strides)));
  }
  try {
    tensor.numel = CheckedNumel(tensor.shape, tensor.type);
  } catch (const ConfigError& error) {
    throw PickleRefusal(error.what());
  }
  Measure(tensor);
  const PickledStorage& storage = data_.storages[tensor.storage];
  const std::int64_t available = storage.bytes / ElementBytes(tensor.type);
  if (tensor.numel > 0 && tensor.last >= available) {
    throw PickleRefusal(fmt::format(
        "a tensor of shape {}, strides {} and offset {} reaches element {} of storage {}, which "
        "has {}",
        FormatShape(tensor.shape), FormatShape(tensor.strides), tensor.offset, tensor.last,
        JsonHandler::Quoted(storage.key), available));
  }
  Limit(data_.tensors.size() + 1, kMaxPickleTensors, "tensors");
  dimensions_ += tensor.shape.size();
  Limit(dimensions_, kMaxDimensionsOfAll, "dimensions in all");
  const Ref ref =
      Add({.kind = PickleKind::kTensor, .index = static_cast<Ref>(data_.tensors.size())});
  data_.tensors.push_back(std::move(tensor));
  return ref;
}

// ("storage", class, key, location, numel) and, in the format before zip files, a view of it.
PickleBuilder::Ref PickleBuilder::Storage(Ref id) {
  if (node(id).kind != PickleKind::kTuple || items(id).size() < 5 || items(id).size() > 6) {
    throw PickleRefusal("a persistent id that is " + Value(id).Describe() +
                        ", expected a tuple of 5 that names a storage");
  }
  const std::vector<Ref> parts = items(id);
  const auto is_text = [&](Ref ref) { return node(ref).kind == PickleKind::kString; };
  if (!is_text(parts[0]) || data_.texts[node(parts[0]).index] != "storage" || !is_text(parts[2])) {
    throw PickleRefusal("a persistent id that does not name a storage");
  }
  if (parts.size() == 6 && node(parts[5]).kind != PickleKind::kNone) {
    throw PickleRefusal("a storage that is a view of another one");
  }
  const std::string& name = ClassName(parts[1]);
  const auto type = TypeOfStorage(name);
  if (!type) throw PickleRefusal("a storage of the type " + JsonHandler::Quoted(name));
  const std::int64_t numel = Size(parts[4], "size of a storage");
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(numel, ElementBytes(*type), &bytes)) {
    throw PickleRefusal(fmt::format("a storage of {} elements", numel));
  }
  const std::string& key = data_.texts[node(parts[2]).index];
  const auto [place, added] = storage_of_key_.emplace(key, data_.storages.size());
  if (added) {
    data_.storages.push_back({.key = key, .type = *type, .bytes = bytes});
  } else if (data_.storages[place->second].bytes != bytes) {
    throw PickleRefusal(fmt::format("storage {} has {} bytes here and {} before",
                                    JsonHandler::Quoted(key), bytes,
                                    data_.storages[place->second].bytes));
  }
  // The type belongs to the reference: one storage can be seen as several types.
  return Add({.kind = PickleKind::kStorage,
              .index = static_cast<Ref>(place->second),
              .bits = static_cast<std::int64_t>(*type)});
}

void PickleBuilder::Build(Ref object, Ref state) {
  switch (node(object).kind) {
    case PickleKind::kObject:
      data_.objects[node(object).index].state = state;
      return;
    case PickleKind::kDict:    // an OrderedDict's attributes: versions of modules
    case PickleKind::kTensor:  // attributes that somebody hung on a tensor
      return;
    default:
      throw PickleRefusal("gives a state to " + Value(object).Describe());
  }
}

}  // namespace ullage::files
