#include "files/torch_file.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include <fmt/format.h>

#include "files/json_handler.h"
#include "files/zip_archive.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr const char* kSaveAgain = "load it with torch.load and save it again with torch.save";
constexpr std::int64_t kSpanBytes = 32 << 20;
// The first value of a file of the older format, 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr std::int64_t kLegacyProtocol = 1001;

[[noreturn]] void Fail(const std::string& path, const std::string& what) {
  throw IoError(path + ": " + what, "the file is damaged: fetch or write it again");
}

// "archive/" of "archive/data.pkl": every name in an archive of torch.save begins with one folder.
std::string FolderOf(const std::string& path, const ZipArchive& archive) {
  for (const ZipEntry& entry : archive.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash != std::string::npos && entry.name.substr(slash) == "/data.pkl") {
      return entry.name.substr(0, slash + 1);
    }
  }
  Fail(path, "a zip file without data.pkl, so not one of torch.save");
}

}  // namespace

TorchFile TorchFile::Open(FileSystem& fs, const std::string& path) {
  TorchFile result;
  result.file_ = fs.OpenForRead(path);
  char start[8] = {};
  result.file_->ReadAt(0, start, std::min<std::int64_t>(sizeof start, result.file_->size()));
  if (std::memcmp(start, "PK\3\4", 4) == 0) {
    result.OpenZip();
  } else if (static_cast<unsigned char>(start[0]) == 0x80) {
    result.OpenLegacy();
  } else {
    const bool pointer = std::memcmp(start, "version ", 8) == 0;
    throw IoError(
        fmt::format("{}: byte 0: neither a zip file nor a pickle, as torch.save writes", path),
        pointer ? "this is a Git LFS pointer: run git lfs pull to get the file"
                : "the file is damaged, or not what it is named: fetch it again");
  }
  return result;
}

void TorchFile::OpenZip() {
  const ZipArchive archive = ZipArchive::Open(*file_);
  const std::string folder = FolderOf(path(), archive);
  if (archive.Find(folder + "constants.pkl") != nullptr) {
    throw UnsupportedError(path() + ": is a TorchScript archive, which holds a program",
                           "save the state dict: torch.save(model.state_dict(), PATH)");
  }
  if (const ZipEntry* order = archive.Find(folder + "byteorder")) {
    std::string text(static_cast<std::size_t>(std::min<std::int64_t>(order->bytes, 8)), '\0');
    file_->ReadAt(order->offset, text.data(), std::ssize(text));
    if (text != "little") {
      throw UnsupportedError(
          fmt::format("{}: has the byte order {}", path(), JsonHandler::Quoted(text)), kSaveAgain);
    }
  }
  const auto compressed = std::ranges::find(archive.entries(), true, &ZipEntry::compressed);
  if (compressed != archive.entries().end()) {
    throw IoError(
        fmt::format("{}: byte {}: entry {} is compressed; torch.save stores entries plainly",
                    path(), compressed->offset, JsonHandler::Quoted(compressed->name)),
        kSaveAgain);
  }
  const ZipEntry& program = *archive.Find(folder + "data.pkl");
  ZipArchive::Verify(*file_, program);
  ByteReader reader(*file_, program.offset, program.offset + program.bytes, "data.pkl ");
  pickle_ = std::make_unique<PickleData>(ReadPickle(reader));
  if (reader.left() != 0) reader.Fail(reader.position(), "the pickle goes on after its end");
  for (const PickledStorage& storage : pickle_->storages) {
    const ZipEntry* entry = archive.Find(folder + "data/" + storage.key);
    const std::string who = "storage " + JsonHandler::Quoted(storage.key);
    if (entry == nullptr) Fail(path(), who + " is not in the archive");
    // A storage may end in a part of an element, which is not counted.
    const std::int64_t rest = entry->bytes - storage.bytes;
    if (rest < 0 || rest >= ElementBytes(storage.type)) {
      Fail(path(), fmt::format("{} has {} bytes in the archive, its pickle says {}", who,
                               entry->bytes, storage.bytes));
    }
    storage_offset_.push_back(entry->offset);
  }
}

// Five pickles (a magic number, a version, facts about the machine, what was saved, the storages'
// keys in order), then for each storage its length in elements and its bytes.
void TorchFile::OpenLegacy() {
  ByteReader reader(*file_, 0, file_->size());
  const PickleData magic = ReadPickle(reader);
  const PickleData::Node& number = magic.nodes[magic.root];
  if (number.kind != PickleKind::kBigInt || magic.texts[number.index] != kLegacyMagic) {
    reader.Fail(0, "a pickle, but not one of torch.save");
  }
  const PickleData version = ReadPickle(reader);
  const std::int64_t protocol = PickleValue(version, version.root).Integer("the protocol");
  if (protocol != kLegacyProtocol) {
    reader.Fail(0, fmt::format("protocol {}, expected {}", protocol, kLegacyProtocol));
  }
  const PickleData machine = ReadPickle(reader);
  const auto little = PickleValue(machine, machine.root).Find("little_endian");
  if (little && !little->Bool("little_endian")) {
    throw UnsupportedError(path() + ": was written by a big-endian machine", kSaveAgain);
  }
  pickle_ = std::make_unique<PickleData>(ReadPickle(reader));
  const PickleData keys = ReadPickle(reader);
  const PickleValue order(keys, keys.root);
  order.ExpectKind(PickleKind::kList, "the list of storages");
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < pickle_->storages.size(); ++i) {
    places.emplace(pickle_->storages[i].key, i);
  }
  storage_offset_.assign(places.size(), -1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::string& key = order[i].String("the key of a storage");
    const auto place = places.find(key);
    const std::int64_t at = reader.position();
    if (place == places.end() || storage_offset_[place->second] >= 0) {
      reader.Fail(at, "storage " + JsonHandler::Quoted(key) + " is unknown or comes twice");
    }
    const PickledStorage& storage = pickle_->storages[place->second];
    const std::int64_t numel = storage.bytes / ElementBytes(storage.type);
    const std::uint64_t given = reader.Little(8);
    if (given != static_cast<std::uint64_t>(numel)) {
      reader.Fail(at, fmt::format("storage {} has {} elements, its pickle says {}",
                                  JsonHandler::Quoted(key), given, numel));
    }
    storage_offset_[place->second] = reader.position();
    reader.Skip(static_cast<std::uint64_t>(storage.bytes));
  }
  if (std::ranges::find(storage_offset_, -1) != storage_offset_.end()) {
    Fail(path(), "a storage of its pickle is missing");
  }
}

std::int64_t TorchFile::OffsetOf(const PickledTensor& tensor) const {
  return storage_offset_[tensor.storage] + tensor.offset * ElementBytes(tensor.type);
}

void TorchFile::Read(const PickledTensor& tensor, std::int64_t first, std::int64_t count,
                     void* out) const {
  if (first < 0 || count < 0 || first > tensor.numel || count > tensor.numel - first) {
    throw IoError(fmt::format("{}: {} elements from {} of a tensor of {} were asked for", path(),
                              count, first, tensor.numel));
  }
  if (count == 0) return;
  if (!tensor.contiguous) return ReadStrided(tensor, first, count, out);
  const std::int64_t element = ElementBytes(tensor.type);
  file_->ReadAt(OffsetOf(tensor) + first * element, out, count * element);
}

// Reads the bytes between the tensor's first and last element once when they are few, else every
// run of neighbours by itself.
void TorchFile::ReadStrided(const PickledTensor& tensor, std::int64_t first, std::int64_t count,
                            void* out) const {
  const std::int64_t element = ElementBytes(tensor.type);
  const std::int64_t begin = storage_offset_[tensor.storage];
  const std::size_t dimensions = tensor.shape.size();
  std::vector<std::int64_t> index(dimensions);
  std::int64_t place = tensor.offset;
  for (std::size_t d = dimensions; d-- > 0;) {
    index[d] = first % tensor.shape[d];
    first /= tensor.shape[d];
    place += index[d] * tensor.strides[d];
  }
  std::vector<char> span;
  const std::int64_t span_elements = tensor.last - tensor.offset + 1;
  if (span_elements <= kSpanBytes / element) {
    span.resize(static_cast<std::size_t>(span_elements * element));
    file_->ReadAt(begin + tensor.offset * element, span.data(), std::ssize(span));
  }
  auto* to = static_cast<char*>(out);
  const std::size_t last = dimensions - 1;
  while (count > 0) {
    const bool neighbours = tensor.strides[last] == 1;
    const std::int64_t run = neighbours ? std::min(count, tensor.shape[last] - index[last]) : 1;
    if (span.empty()) {
      file_->ReadAt(begin + place * element, to, run * element);
    } else {
      std::memcpy(to, span.data() + (place - tensor.offset) * element,
                  static_cast<std::size_t>(run * element));
    }
    to += run * element;
    count -= run;
    index[last] += run;
    place += run * tensor.strides[last];
    for (std::size_t d = last; d > 0 && index[d] == tensor.shape[d]; --d) {
      place += tensor.strides[d - 1] - index[d] * tensor.strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

}  // namespace ullage::files
