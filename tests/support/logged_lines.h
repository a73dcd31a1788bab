// What a test body logs, what it throws, and a pause: for test worlds of several rooms.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"

namespace testsupport {

// Takes the lines that are logged while it lives.
class LoggedLines {
 public:
  LoggedLines() {
    ullage::SetLogSink([state = state_](ullage::LogLevel, std::string_view, std::string_view line) {
      std::lock_guard lock(state->mutex);
      state->lines.emplace_back(line);
    });
  }
  ~LoggedLines() { ullage::SetLogSink({}); }
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  int Count(const std::string& part) const {
    std::lock_guard lock(state_->mutex);
    int count = 0;
    for (const std::string& line : state_->lines) count += line.find(part) != std::string::npos;
    return count;
  }

 private:
  struct State {
    std::mutex mutex;
    std::vector<std::string> lines;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// What `call` throws says; empty when it throws nothing.
inline std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline void Sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace testsupport
