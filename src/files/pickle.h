// What a pickle of torch.save holds, read without Python and without executing anything.
//
// A pickle is a program for a small stack machine. Here it can build numbers, strings, containers,
// and tensors that refer to storages; the few functions that torch.save needs for that are known by
// name (pickle_reduce.h). Every other class or function is an inert stub: its name and what it was
// given are kept, nothing is called. Opcodes that torch does not write are refused with file,
// offset and opcode.
//
// Pickles come from anywhere: numbers of values, items, tensors and bytes of text are bounded
// (kMaxPickle... below), nothing is allocated by the file's word alone, and values refer to each
// other by index, so that depth and cycles cost nothing here. Who walks them must bound the depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/byte_reader.h"
#include "files/safetensors.h"

namespace ullage::files {

inline constexpr std::size_t kMaxPickleValues = 2'000'000;
inline constexpr std::size_t kMaxPickleItems = 16'000'000;  // in all containers and on the stack
inline constexpr std::size_t kMaxPickleTensors = 500'000;
inline constexpr std::size_t kMaxPickleTextBytes = 64'000'000;

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // more than 64 bits: its bytes, little-endian
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,  // also collections.OrderedDict
  kSet,
  kClass,   // a class, function or constant, by name only
  kObject,  // what a class or function that is not known would have made
  kStorage,
  kTensor,
};

// The bytes behind tensors. Where they are in the file is TorchFile's to know.
struct PickledStorage {
  std::string key;
  ElementType type = ElementType::kU8;
  std::int64_t bytes = 0;
};

// Offset and strides count elements of `type`. Checked: no number is negative and every element
// lies inside the storage.
struct PickledTensor {
  std::size_t storage = 0;  // in Pickle::storages()
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  std::int64_t last = 0;   // the highest element that belongs to it, when numel > 0
  bool contiguous = true;  // elements follow each other in the order of the shape
};

// The values as the machine leaves them. Internal to the room.
struct PickleData {
  using Ref = std::uint32_t;

  struct Node {
    PickleKind kind = PickleKind::kNone;
    Ref index = 0;          // in the table of its kind
    std::int64_t bits = 0;  // of a kBool, kInt or kFloat
  };
  struct Object {
    Ref class_ = 0;
    Ref arguments = 0;  // a tuple
    Ref state = 0;      // what BUILD gave it, or none
    Ref items = 0;      // in `lists`, when there are any
    bool has_items = false;
    bool mapping = false;  // the items are keys and values
  };

  std::string path;
  std::vector<Node> nodes;
  std::vector<std::string> texts;       // strings, bytes, big integers, "module.name" of classes
  std::vector<std::vector<Ref>> lists;  // items; of a dict key, value, key, value, ...
  std::vector<Object> objects;
  std::vector<PickledStorage> storages;  // each key once
  std::vector<PickledTensor> tensors;
  Ref root = 0;
};

// One value. Cheap to copy; the Pickle must outlive it. Members that expect a kind throw IoError
// "<path>: <what> is <kind>, expected ..." where `what` says whose value it is.
class PickleValue {
 public:
  PickleValue(const PickleData& data, PickleData::Ref ref) : data_(&data), ref_(ref) {}

  PickleKind kind() const { return node().kind; }
  bool IsNone() const { return kind() == PickleKind::kNone; }
  std::string Describe() const;  // "a list of 3", "an object of class torch.device", ...

  // An enumerator of an unknown enum class, which is an object made from one number, is that
  // number.
  std::int64_t Integer(std::string_view what) const;
  double Number(std::string_view what) const;
  bool Bool(std::string_view what) const;
  const std::string& String(std::string_view what) const;
  const PickledTensor& Tensor(std::string_view what) const;
  const std::string& ClassName() const;  // of a kClass or kObject, else empty

  // Of tuples, lists, sets and dicts; 0 for anything else.
  std::size_t size() const;
  PickleValue operator[](std::size_t i) const;  // of a tuple, list or set
  PickleValue KeyAt(std::size_t i) const;       // of a dict
  PickleValue ValueAt(std::size_t i) const;     // of a dict

  // The value under a string key of a dict, or of an object's state or items; the last one where a
  // key comes twice, as in Python. Takes time in proportion to the entries.
  std::optional<PickleValue> Find(std::string_view key) const;
  PickleValue Get(std::string_view key) const;  // throws IoError when there is none

  void ExpectKind(PickleKind kind, std::string_view what) const;
  // Throws IoError "<path>: <what> is <kind>, expected <expected>".
  [[noreturn]] void Unexpected(std::string_view what, std::string_view expected) const;

 private:
  const PickleData::Node& node() const { return data_->nodes[ref_]; }
  const std::vector<PickleData::Ref>* Items() const;
  PickleValue At(PickleData::Ref ref) const { return {*data_, ref}; }

  const PickleData* data_;
  PickleData::Ref ref_;
};

// Runs the pickle that begins at the reader's position up to its end, which is where the reader
// then is. Throws IoError with path, offset and opcode.
PickleData ReadPickle(ByteReader& reader);

}  // namespace ullage::files
