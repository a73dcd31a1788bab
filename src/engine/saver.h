// Saving: each rank writes its slices on a thread of its own, and the first one completes the
// checkpoint, while training may go on.
//
// Note [Saving beside training]
// The thread reads state where it lies, unit after unit, in the order in which steps update them. A
// unit that is about to change is waited for, or copied to a buffer of bounded size if the thread
// has not come to it yet. So there is no second copy of everything unless the buffer is that large,
// and a slow disk holds training up instead of filling memory. At most one save is under way.
//
// Nothing collective happens on the thread: ranks tell the first one what they wrote through a
// window, and it tells them how it ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/shard_writer.h"
#include "engine/checkpoint_contents.h"
#include "engine/core.h"
#include "files/atomic_directory.h"

namespace ullage::engine {

// All but BeforeChange is called by the thread that owns the engine.
class Saver {
 public:
  explicit Saver(Engine::Core& core) : core_(core) {}
  // Waits for what is under way, unless an error ends the engine; then it is given up.
  ~Saver();

  // Engine::SaveCheckpoint.
  std::string Save(const std::string& folder, const SaveOptions& options);
  // Collective: the save that is under way has ended. Throws on every rank what went wrong on one.
  void Finish();
  // The state of `unit` will change when this returns: what a save still needs of it is kept.
  void BeforeChange(int unit);

  double wait_ms() const { return wait_ms_; }  // that BeforeChange took

 private:
  enum class Progress : std::uint8_t { kPending, kCopying, kCopied, kWriting, kDone };
  struct Unit {
    std::size_t begin = 0;  // of its tensors in `tensors_`
    std::size_t end = 0;
    std::int64_t numel = 0;  // of all of them
    Progress progress = Progress::kDone;
    std::int64_t copy = 0;  // where its values lie in the buffer, in elements
  };
  // What a rank tells the others, in its region of the window.
  struct Message {
    std::int64_t failed = 0;
    char text[2040] = {};
  };
  struct Region {
    Message written;    // by this rank
    Message completed;  // by the first rank, for all
    std::int64_t bytes = 0;
    std::int64_t blocks = 0;
  };
  enum Word : int { kWritten, kCompleted, kProgress };

  void Begin(const std::string& folder, const SaveOptions& options);
  void OpenWindow();
  void Work() noexcept;
  checkpoint::File WriteShard();
  void WriteUnit(Unit& unit, checkpoint::ShardWriter& shard, const memory::Buffer& buffer);
  void Load(const SavedTensor& tensor, std::int64_t first, std::span<float> values) const;
  void Copy(Unit& unit);
  // Returns when a rank has raised `word` for this save. Throws IoError when it has stopped to make
  // progress.
  void Await(int rank, Word word);
  void NoteProgress() { window_->Signal(kProgress, ++progress_); }
  std::vector<checkpoint::File> Collect();
  void Complete(std::vector<checkpoint::File> files);
  void Tell(Message& message, Word word, const std::string& problem);
  Region& region() const { return *reinterpret_cast<Region*>(window_->data()); }
  std::uint64_t* checksums() const {
    return reinterpret_cast<std::uint64_t*>(window_->data() + sizeof(Region));
  }
  bool is_first() const { return core_.ranks->rank() == 0; }
  std::string path() const { return folder_->PathOf(steps_); }
  // Where the files are written, known to every rank.
  std::string partial() const { return path() + files::AtomicDirectory::kPartial; }

  Engine::Core& core_;
  files::PosixFileSystem disk_;
  std::unique_ptr<comm::Window> window_;  // from the first save on
  std::int64_t window_blocks_ = 0;
  memory::Buffer buffer_;  // for units that change before they are written
  double wait_ms_ = 0;

  // Of the save that is under way.
  files::FileSystem* fs_ = nullptr;
  std::unique_ptr<checkpoint::CheckpointFolder> folder_;
  std::unique_ptr<files::AtomicDirectory> directory_;  // on the first rank
  std::int64_t steps_ = 0;
  std::int64_t keep_ = 0;
  checkpoint::Manifest manifest_;
  std::vector<SavedTensor> tensors_;
  std::uint64_t generation_ = 0;  // of saves so far
  std::uint64_t progress_ = 0;    // whatever rises while something is written; the thread's
  std::atomic<bool> give_up_ = false;
  std::thread thread_;  // joinable: a save is under way

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Unit> units_;  // by number
  std::int64_t copied_ = 0;  // elements of the buffer that are taken
};

}  // namespace ullage::engine
