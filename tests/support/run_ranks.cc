#include "support/run_ranks.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern char** environ;

namespace testsupport {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// How long the other ranks may go on after one has failed: they usually wait in a collective
// that will never complete.
constexpr auto kGraceAfterFailure = std::chrono::seconds(2);

struct Child {
  pid_t pid = 0;
  fs::path log;
  bool done = false;
  bool must_be_killed = false;
  int status = 0;

  bool ok() const {
    if (!done) return false;
    if (must_be_killed) return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

std::string Describe(int status) {
  if (WIFEXITED(status)) return "exited with " + std::to_string(WEXITSTATUS(status));
  return std::string("ended by signal ") + strsignal(WTERMSIG(status));
}

std::string Contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Starts this binary again for one rank, with stdout and stderr going to `log`.
Child Start(const Rank& rank, const std::string& filter, const fs::path& log) {
  std::vector<std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) env.emplace_back(*entry);
  env.push_back("TEST_RANK=" + std::to_string(rank.rank));
  env.push_back("TEST_WORLD_SIZE=" + std::to_string(rank.world_size));
  env.push_back("TEST_STORE=" + rank.store_path);
  env.push_back("OMP_NUM_THREADS=1");
  std::vector<char*> envp;
  for (std::string& entry : env) envp.push_back(entry.data());
  envp.push_back(nullptr);

  std::string exe = "/proc/self/exe", name = "rank", filter_arg = "--gtest_filter=" + filter;
  std::string disabled_arg = "--gtest_also_run_disabled_tests";
  char* argv[] = {name.data(), filter_arg.data(), disabled_arg.data(), nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_CREAT | O_WRONLY | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  Child child;
  child.log = log;
  int error = posix_spawn(&child.pid, exe.c_str(), &actions, nullptr, argv, envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error(std::string("posix_spawn: ") + std::strerror(error));
  return child;
}

void WaitAll(std::vector<Child>& children, Clock::time_point deadline) {
  size_t running = children.size();
  bool failed = false;
  while (running > 0) {
    for (Child& child : children) {
      if (child.done || waitpid(child.pid, &child.status, WNOHANG) != child.pid) continue;
      child.done = true;
      --running;
      if (!child.ok() && !failed) {
        failed = true;
        deadline = std::min(deadline, Clock::now() + kGraceAfterFailure);
      }
    }
    if (running > 0 && Clock::now() > deadline) {
      for (const Child& child : children) {
        if (!child.done) kill(child.pid, SIGKILL);
      }
    }
    if (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

void RunOnRanks(int world_size, const RankBody& body, std::chrono::seconds timeout,
                const std::set<int>& killed_ranks) {
  if (const char* rank = std::getenv("TEST_RANK")) {
    body({std::atoi(rank), std::atoi(std::getenv("TEST_WORLD_SIZE")), std::getenv("TEST_STORE")});
    return;
  }

  std::string dir = (fs::temp_directory_path() / ("ranks-" + std::string(6, 'X'))).string();
  ASSERT_NE(mkdtemp(dir.data()), nullptr) << std::strerror(errno);
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = std::string(test->test_suite_name()) + "." + test->name();

  std::vector<Child> children;
  for (int rank = 0; rank < world_size; ++rank) {
    children.push_back(Start({rank, world_size, dir + "/store"}, filter,
                             fs::path(dir) / ("rank" + std::to_string(rank) + ".log")));
    children.back().must_be_killed = killed_ranks.contains(rank);
  }
  WaitAll(children, Clock::now() + timeout);
  for (size_t rank = 0; rank < children.size(); ++rank) {
    if (children[rank].ok()) continue;
    ADD_FAILURE() << "rank " << rank << " of " << world_size << " "
                  << Describe(children[rank].status) << "\n"
                  << Contents(children[rank].log);
  }
  fs::remove_all(dir);
}

void RunOnThreads(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&errors, &body, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace testsupport
