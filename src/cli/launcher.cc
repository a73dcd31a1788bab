#include "cli/launcher.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <thread>

#include "ullage/error.h"

extern char** environ;

namespace ullage::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kLauncherVariable = "ULLAGE_LAUNCHER_PID";

// A folder for the file through which the ranks meet; gone with the object.
class MeetingPlace {
 public:
  MeetingPlace() {
    std::string name =
        (std::filesystem::temp_directory_path() / ("ullage-" + std::string(6, 'X'))).string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw IoError(fmt::format("{}: cannot be made: {}", name, ::strerror(errno)),
                    "point TMPDIR at a folder that can be written");
    }
    path_ = name;
  }
  ~MeetingPlace() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;

  std::string store() const { return fmt::format("file:{}/store", path_); }

 private:
  std::string path_;
};

// Blocks the signals that the launcher waits for, and gives them back to the ranks it starts.
class BlockedSignals {
 public:
  BlockedSignals() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  const sigset_t& before() const { return before_; }

  // The next of them, or 0 after `milliseconds`.
  int Wait(int milliseconds) const {
    const timespec limit = {milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
    const int signal = ::sigtimedwait(&set_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_;
  sigset_t before_;
};

std::vector<std::string> EnvironmentOf(const LaunchOptions& options, int rank,
                                       const std::string& store) {
  std::vector<std::string> variables;
  const auto is_ours = [](const std::string& text) { return text.starts_with("ULLAGE_"); };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (is_ours(text) && !text.starts_with("ULLAGE_LOG=")) continue;
    if (options.threads > 0 && text.starts_with("OMP_NUM_THREADS=")) continue;
    variables.push_back(text);
  }
  variables.push_back(fmt::format("ULLAGE_RANK={}", rank));
  variables.push_back(fmt::format("ULLAGE_LOCAL_RANK={}", rank));
  variables.push_back(fmt::format("ULLAGE_WORLD_SIZE={}", options.ranks));
  variables.push_back("ULLAGE_STORE=" + store);
  variables.push_back(fmt::format("{}={}", kLauncherVariable, ::getpid()));
  if (options.threads > 0 || ::getenv("OMP_NUM_THREADS") == nullptr) {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    const int threads = options.threads > 0 ? options.threads : std::max(1, cores / options.ranks);
    variables.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  }
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

pid_t Spawn(const LaunchOptions& options, int rank, const std::string& store,
            const sigset_t& mask) {
  std::vector<std::string> command = options.command;
  std::vector<std::string> variables = EnvironmentOf(options, rank, store);
  // A group of its own: Ctrl-C reaches the launcher only, which passes it on once.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, options.program.c_str(), nullptr, &attributes,
                                  Pointers(command).data(), Pointers(variables).data());
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw IoError(fmt::format("rank {} could not be started: {}: {}", rank, options.program,
                              ::strerror(error)),
                  "see that the machine has room for one process for each rank");
  }
  return pid;
}

// The ranks that run, and the first that failed.
class Children {
 public:
  ~Children() {
    Signal(SIGKILL);
    while (running() > 0) Reap(0);
  }

  void Add(pid_t pid) { pids_.push_back(pid); }
  int running() const {
    return static_cast<int>(std::ranges::count_if(pids_, [](pid_t pid) { return pid > 0; }));
  }
  void Signal(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, signal);
    }
  }

  // Takes note of those that have ended; with flags 0 waits for one.
  void Reap(int flags) {
    int status = 0;
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, &status, flags)) > 0) {
      const auto found = std::ranges::find(pids_, pid);
      if (found == pids_.end()) continue;
      *found = 0;
      const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code != 0) Failed(static_cast<int>(found - pids_.begin()), code, status);
      if (flags == 0) return;
    }
  }

  std::optional<int> first_failure() const { return first_failure_; }
  void SayNothingMore() { quiet_ = true; }

 private:
  void Failed(int rank, int code, int status) {
    const bool first = !first_failure_;
    if (first) first_failure_ = code;
    if (quiet_) return;
    if (WIFSIGNALED(status)) {
      fmt::print(stderr, "ullage: rank {} was killed by signal {} ({})\n", rank, WTERMSIG(status),
                 ::strsignal(WTERMSIG(status)));
    } else if (first && code != 1) {  // a rank that ends with 1 has said why
      fmt::print(stderr, "ullage: rank {} ended with exit code {}\n", rank, code);
    }
  }

  std::vector<pid_t> pids_;  // by rank; 0 once it has ended
  std::optional<int> first_failure_;
  bool quiet_ = false;
};

}  // namespace

int LaunchRanks(const LaunchOptions& options) {
  const MeetingPlace place;
  const BlockedSignals signals;
  Children children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    children.Add(Spawn(options, rank, place.store(), signals.before()));
  }
  int interrupts = 0;
  std::optional<Clock::time_point> deadline;
  while (children.running() > 0) {
    const int signal = signals.Wait(200);
    if (signal == SIGINT || signal == SIGTERM) {
      children.SayNothingMore();  // they end with 128 + signal because they were asked to
      children.Signal(++interrupts == 1 ? signal : SIGKILL);
    }
    children.Reap(WNOHANG);
    if (children.running() == 0 || interrupts > 0 || !children.first_failure()) continue;
    if (!deadline) deadline = Clock::now() + options.grace;
    if (Clock::now() < *deadline) continue;
    fmt::print(stderr, "ullage: {} rank(s) did not end after another had failed and are killed\n",
               children.running());
    children.SayNothingMore();
    children.Signal(SIGKILL);
    deadline = Clock::now() + options.grace;
  }
  return children.first_failure().value_or(0);
}

void DieWithLauncher() {
  const char* launcher = ::getenv(kLauncherVariable);
  if (launcher == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before the line above.
  if (std::to_string(::getppid()) != launcher) ::raise(SIGKILL);
}

}  // namespace ullage::cli
