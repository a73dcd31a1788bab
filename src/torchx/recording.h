// Work of a CUDA device that is recorded once and launched again as a whole (a CUDA graph).
//
// A launch costs the host several microseconds, and an operator of torch several more; a small
// model's kernels are done sooner. Without CUDA in the build everything throws UnsupportedError.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace ullage::torchx {

// What was recorded. Launching it again does the same work on the same memory: what it read must
// lie where it lay, and what it allocated belongs to it. Random numbers of torch's generator of the
// device are drawn anew each time.
class Recording {
 public:
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  friend class Recorder;
  struct Graph;
  explicit Recording(std::unique_ptr<Graph> graph);
  std::unique_ptr<Graph> graph_;
};

// A queue of its own, since CUDA records no work of the queue that operators usually run in, and
// memory that recordings share. So they must be launched one after the other, and what one has
// computed is to be used before the next is launched.
class Recorder {
 public:
  explicit Recorder(c10::Device device);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // `work` runs with the recorder's queue as that of operators: after what the caller's queue has
  // so far, and before what it gets later.
  void Run(const std::function<void()>& work);
  // The same, but what `work` launches is recorded and not done. It must not wait for the device
  // nor read from it. What it throws goes on; nothing was recorded then.
  std::unique_ptr<Recording> Record(const std::function<void()>& work);
  // To be called inside Run.
  void Launch(Recording& recording);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ullage::torchx
