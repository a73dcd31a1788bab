// What becomes of an operator that finds no room on the device.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "engine/core.h"

namespace ullage {

// Throws OutOfMemoryError: what was refused in which phase, what the device has, who holds most of
// it, and the settings that would make it fit.
[[noreturn]] void ThrowDeviceOutOfMemory(Engine::Core& core, const std::string& phase,
                                         const std::string& message);

// Runs `body`, which runs operators.
template <typename Body>
auto WithDeviceErrors(Engine::Core& core, const char* phase, const Body& body) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    ThrowDeviceOutOfMemory(core, phase, error.what_without_backtrace());
  }
}

}  // namespace ullage
