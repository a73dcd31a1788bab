// Lines for people: one function a severity, each line naming the part it comes from.
//
// The level is read once from ULLAGE_LOG (error, warn, info, debug; default info). Lines go to
// stderr in one write, so that ranks do not interleave within a line. A program can take them
// instead through SetLogSink.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace ullage {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

using LogSink = std::function<void(LogLevel, std::string_view subsystem, std::string_view line)>;

// Replaces stderr; an empty sink restores it. Not to be called while other threads log.
void SetLogSink(LogSink sink);

bool LogEnabled(LogLevel level);
void Log(LogLevel level, std::string_view subsystem, std::string_view line);

inline void LogWarn(std::string_view subsystem, std::string_view line) {
  Log(LogLevel::kWarn, subsystem, line);
}
inline void LogInfo(std::string_view subsystem, std::string_view line) {
  Log(LogLevel::kInfo, subsystem, line);
}
inline void LogDebug(std::string_view subsystem, std::string_view line) {
  Log(LogLevel::kDebug, subsystem, line);
}

}  // namespace ullage
