// The stack machine of pickles: opcodes of protocols 2 to 5, as far as torch writes them. Their
// meaning is that of Python's pickletools.
#include <array>
#include <bit>

#include <fmt/format.h>

#include "files/json_handler.h"
#include "files/pickle.h"
#include "files/pickle_reduce.h"

namespace ullage::files {
namespace {

using Ref = PickleData::Ref;

constexpr std::size_t kMaxMemo = 4'000'000;
constexpr std::size_t kLongestName = 1000;  // of a module or class

enum Op : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

class Machine {
 public:
  explicit Machine(ByteReader& reader) : reader_(reader) {}

  PickleData Run() {
    builder_.data().path = reader_.path();
    op_at_ = reader_.position();
    op_ = reader_.Byte();
    if (op_ != kProto) Fail("a pickle begins with its protocol, opcode 0x80");
    Protocol();
    try {
      do {
        op_at_ = reader_.position();
        op_ = reader_.Byte();
      } while (Step());
    } catch (const PickleRefusal& refusal) {
      Fail(refusal.what());
    }
    return std::move(builder_.data());
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    const std::string shown = op_ > 0x20 && op_ < 0x7f ? fmt::format(" '{}'", char(op_)) : "";
    reader_.Fail(op_at_, fmt::format("opcode 0x{:02x}{}: {}", op_, shown, what));
  }

  void Protocol() {
    const std::uint8_t version = reader_.Byte();
    if (version < 2 || version > 5) {
      Fail(fmt::format("protocol {}, only 2 to 5 are read", version));
    }
  }

  // False after the last opcode.
  bool Step() {
    switch (op_) {
      case kProto:
        Protocol();
        return true;
      case kFrame:
        if (reader_.Little(8) > static_cast<std::uint64_t>(reader_.left())) {
          Fail("a frame that is longer than the file");
        }
        return true;
      case kStop:
        if (stack_.size() != 1 || !marks_.empty()) {
          Fail(fmt::format("the end with {} values and {} marks on the stack", stack_.size(),
                           marks_.size()));
        }
        builder_.data().root = stack_.back();
        return false;
      default:
        if (!StackStep() && !ScalarStep() && !ContainerStep() && !ObjectStep()) {
          Fail("is not one that torch.save writes");
        }
        return true;
    }
  }

  bool StackStep() {
    switch (op_) {
      case kMark:
        builder_.CountItems(1);
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        // As in Python: on an empty part of the stack it takes the mark.
        if (!marks_.empty() && marks_.back() == stack_.size())
          marks_.pop_back();
        else
          Pop();
        return true;
      case kPopMark:
        PopToMark();
        return true;
      case kDup:
        Push(Top());
        return true;
      case kBinGet:
        return Get(reader_.Little(1));
      case kLongBinGet:
        return Get(reader_.Little(4));
      case kBinPut:
        return Put(reader_.Little(1));
      case kLongBinPut:
        return Put(reader_.Little(4));
      case kMemoize:
        return Put(memo_count_);
      default:
        return false;
    }
  }

  bool ScalarStep() {
    switch (op_) {
      case kNone:
        return Push(PickleBuilder::kNone);
      case kNewTrue:
        return Push(PickleBuilder::kTrue);
      case kNewFalse:
        return Push(PickleBuilder::kFalse);
      case kBinInt:
        return Push(builder_.Integer(static_cast<std::int32_t>(reader_.Little(4))));
      case kBinInt1:
        return Push(builder_.Integer(static_cast<std::int64_t>(reader_.Little(1))));
      case kBinInt2:
        return Push(builder_.Integer(static_cast<std::int64_t>(reader_.Little(2))));
      case kLong1:
        return Push(Long(reader_.Little(1)));
      case kLong4:
        return Push(Long(reader_.Little(4)));
      case kBinFloat:
        return Push(builder_.Float(BigEndianDouble()));
      case kBinUnicode:
      case kBinString:
        return Push(Text(PickleKind::kString, reader_.Little(4)));
      case kShortBinUnicode:
      case kShortBinString:
        return Push(Text(PickleKind::kString, reader_.Little(1)));
      case kBinUnicode8:
        return Push(Text(PickleKind::kString, reader_.Little(8)));
      case kBinBytes:
        return Push(Text(PickleKind::kBytes, reader_.Little(4)));
      case kShortBinBytes:
        return Push(Text(PickleKind::kBytes, reader_.Little(1)));
      case kBinBytes8:
      case kByteArray8:
        return Push(Text(PickleKind::kBytes, reader_.Little(8)));
      default:
        return false;
    }
  }

  bool ContainerStep() {
    switch (op_) {
      case kEmptyTuple:
        return Push(builder_.Container(PickleKind::kTuple, {}));
      case kEmptyList:
        return Push(builder_.Container(PickleKind::kList, {}));
      case kEmptyDict:
        return Push(builder_.Container(PickleKind::kDict, {}));
      case kEmptySet:
        return Push(builder_.Container(PickleKind::kSet, {}));
      case kTuple:
        return Push(builder_.Container(PickleKind::kTuple, PopToMark()));
      case kList:
        return Push(builder_.Container(PickleKind::kList, PopToMark()));
      case kFrozenSet:
        return Push(builder_.Container(PickleKind::kSet, PopToMark()));
      case kDict: {
        std::vector<Ref> items = PopToMark();
        if (items.size() % 2 != 0) Fail("a key without a value");
        return Push(builder_.Container(PickleKind::kDict, std::move(items)));
      }
      case kTuple1:
      case kTuple2:
      case kTuple3: {
        std::vector<Ref> items(static_cast<std::size_t>(op_ - kTuple1 + 1));
        for (std::size_t i = items.size(); i-- > 0;) items[i] = Pop();
        return Push(builder_.Container(PickleKind::kTuple, std::move(items)));
      }
      case kAppend: {
        const Ref item = Pop();
        return Append({item}, false);
      }
      case kAppends:
      case kAddItems:
        return Append(PopToMark(), false);
      case kSetItem: {
        const Ref value = Pop();
        const Ref key = Pop();
        return Append({key, value}, true);
      }
      case kSetItems:
        return Append(PopToMark(), true);
      default:
        return false;
    }
  }

  bool ObjectStep() {
    switch (op_) {
      case kGlobal: {
        const std::string module = reader_.Line(kLongestName);
        return Push(builder_.Text(PickleKind::kClass, module + "." + reader_.Line(kLongestName)));
      }
      case kStackGlobal: {
        const std::string name = PopName();
        const std::string module = PopName();
        return Push(builder_.Text(PickleKind::kClass, module + "." + name));
      }
      case kReduce: {
        const Ref arguments = Pop();
        const Ref callable = Pop();
        return Push(builder_.Call(callable, arguments));
      }
      case kNewObjEx:
        Pop();  // arguments by name, which nothing here looks at
        [[fallthrough]];
      case kNewObj: {
        const Ref arguments = Pop();
        const Ref class_ = Pop();
        return Push(builder_.Object(class_, arguments));
      }
      case kBuild: {
        const Ref state = Pop();
        builder_.Build(Top(), state);
        return true;
      }
      case kBinPersId:
        return Push(builder_.Storage(Pop()));
      default:
        return false;
    }
  }

  bool Push(Ref ref) {
    builder_.CountItems(1);
    stack_.push_back(ref);
    return true;
  }

  void NeedValue() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) Fail("the stack is empty");
  }

  Ref Top() const {
    NeedValue();
    return stack_.back();
  }

  Ref Pop() {
    NeedValue();
    const Ref ref = stack_.back();
    stack_.pop_back();
    return ref;
  }

  std::vector<Ref> PopToMark() {
    if (marks_.empty()) Fail("there is no mark on the stack");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Ref> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  std::string PopName() {
    const Ref ref = Pop();
    const PickleData::Node& node = builder_.node(ref);
    if (node.kind != PickleKind::kString ||
        builder_.data().texts[node.index].size() > kLongestName) {
      Fail(fmt::format("the name of a class must be a string of at most {} bytes", kLongestName));
    }
    return builder_.data().texts[node.index];
  }

  bool Get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kUnset) {
      Fail(fmt::format("nothing was remembered as {}", index));
    }
    return Push(memo_[index]);
  }

  bool Put(std::uint64_t index) {
    if (index >= kMaxMemo) Fail(fmt::format("remembers {}, at most {} is read", index, kMaxMemo));
    if (index >= memo_.size()) memo_.resize(index + 1, kUnset);
    memo_count_ += memo_[index] == kUnset ? 1 : 0;
    memo_[index] = Top();
    return true;
  }

  Ref Long(std::uint64_t bytes) {
    if (bytes > 8) return Text(PickleKind::kBigInt, bytes);
    const std::string number = reader_.String(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = number.size(); i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(number[i]);
    }
    if (bytes > 0 && bytes < 8 && (number.back() & 0x80) != 0) value |= ~0ULL << (8 * bytes);
    return builder_.Integer(static_cast<std::int64_t>(value));
  }

  double BigEndianDouble() {
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | reader_.Byte();
    return std::bit_cast<double>(bits);
  }

  Ref Text(PickleKind kind, std::uint64_t bytes) {
    if (bytes > kMaxPickleTextBytes) {
      Fail(fmt::format("{} bytes of text, at most {} are read", bytes, kMaxPickleTextBytes));
    }
    return builder_.Text(kind, reader_.String(bytes));
  }

  // Items, or keys and values, go into the container below them.
  bool Append(const std::vector<Ref>& items, bool mapping) {
    if (mapping && items.size() % 2 != 0) Fail("a key without a value");
    const Ref container = Top();
    switch (builder_.node(container).kind) {
      case PickleKind::kDict:
        if (!mapping) Fail("appends to a dict");
        break;
      case PickleKind::kList:
      case PickleKind::kSet:
        if (mapping) Fail("sets keys of a list or set");
        break;
      case PickleKind::kObject:
        return builder_.AppendToObject(container, items, mapping);
      default:
        Fail("adds items to something that is no list, set or dict");
    }
    builder_.Append(container, items.data(), items.size());
    return true;
  }

  static constexpr Ref kUnset = ~Ref{0};

  ByteReader& reader_;
  PickleBuilder builder_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;  // the size of the stack at each
  std::vector<Ref> memo_;
  std::size_t memo_count_ = 0;
  std::int64_t op_at_ = 0;
  std::uint8_t op_ = 0;
};

}  // namespace

PickleData ReadPickle(ByteReader& reader) {
  return Machine(reader).Run();
}

}  // namespace ullage::files
