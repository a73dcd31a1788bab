#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

namespace ullage {
namespace {

LogLevel LevelFromEnvironment() {
  const char* text = std::getenv("ULLAGE_LOG");
  const std::string_view level = text == nullptr ? "info" : text;
  if (level == "error") return LogLevel::kError;
  if (level == "warn") return LogLevel::kWarn;
  if (level == "debug") return LogLevel::kDebug;
  return LogLevel::kInfo;
}

std::mutex& SinkMutex() {
  static std::mutex mutex;
  return mutex;
}

LogSink& Sink() {
  static LogSink sink;
  return sink;
}

}  // namespace

void SetLogSink(LogSink sink) {
  std::lock_guard lock(SinkMutex());
  Sink() = std::move(sink);
}

bool LogEnabled(LogLevel level) {
  static const LogLevel limit = LevelFromEnvironment();
  return level <= limit;
}

void Log(LogLevel level, std::string_view subsystem, std::string_view line) {
  if (!LogEnabled(level)) return;
  std::lock_guard lock(SinkMutex());
  if (Sink()) return Sink()(level, subsystem, line);
  const char* severity = level == LogLevel::kError  ? "error: "
                         : level == LogLevel::kWarn ? "warning: "
                                                    : "";
  const std::string text = fmt::format("ullage {}: {}{}\n", subsystem, severity, line);
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace ullage
