// The functions and classes that torch.save needs when it is read again, as what they would
// return. Internal to the room.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "files/pickle.h"

namespace ullage::files {

// Why a value cannot be built; the machine adds path, offset and opcode.
class PickleRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Adds values within the bounds of pickle.h; throws PickleRefusal beyond them.
class PickleBuilder {
 public:
  using Ref = PickleData::Ref;
  static constexpr Ref kNone = 0, kTrue = 1, kFalse = 2;

  PickleBuilder();

  Ref Integer(std::int64_t value);
  Ref Float(double value);
  Ref Text(PickleKind kind, std::string text);
  Ref Container(PickleKind kind, std::vector<Ref> items);
  Ref Object(Ref class_, Ref arguments);

  void Append(Ref container, const Ref* items, std::size_t count);
  // Items that a class's own code would have taken: true for the machine's convenience.
  bool AppendToObject(Ref object, const std::vector<Ref>& items, bool mapping);
  // Counts what is put on a stack or into a container.
  void CountItems(std::size_t count);

  // What `callable` gives for the tuple `arguments`.
  Ref Call(Ref callable, Ref arguments);
  // The storage that a persistent id of torch.save names.
  Ref Storage(Ref id);
  // Gives `object` the state that its class kept for it.
  void Build(Ref object, Ref state);

  PickleData& data() { return data_; }
  const PickleData::Node& node(Ref ref) const { return data_.nodes[ref]; }
  const std::vector<Ref>& items(Ref ref) const { return data_.lists[node(ref).index]; }

 private:
  Ref Add(PickleData::Node node);
  PickleValue Value(Ref ref) const { return {data_, ref}; }
  const std::string& ClassName(Ref ref) const;
  // The tensor that the function `name` makes; nothing for other functions.
  std::optional<Ref> Rebuild(const std::string& name, const std::vector<Ref>& arguments);
  Ref OrderedDict(const std::vector<Ref>& arguments);
  Ref Set(const std::vector<Ref>& arguments);
  // `v3` is _rebuild_tensor_v3, which names the type of the elements.
  Ref Tensor(const std::vector<Ref>& arguments, bool v3);
  std::vector<std::int64_t> Numbers(Ref tuple, const char* what);
  std::int64_t Size(Ref ref, const char* what);

  PickleData data_;
  std::size_t items_ = 0;
  std::size_t text_bytes_ = 0;
  std::size_t dimensions_ = 0;
  std::unordered_map<std::string, std::size_t> storage_of_key_;
};

}  // namespace ullage::files
