// SIGINT and SIGTERM: the first asks the run to end after the current step, the second ends the
// process at once.
#pragma once

namespace ullage::cli {

// Takes both signals for the process until it ends.
void CatchInterrupts();

// The first signal that came; 0 for none. Any thread.
int InterruptSignal();

}  // namespace ullage::cli
