// Loops over ranges on several threads. torch's own are not used for the host's share of the work:
// their number follows OMP_NUM_THREADS, which launchers set to 1.
#pragma once

#include <cstdint>
#include <functional>

namespace ullage {

// Threads that ParallelFor uses from now on, the caller among them. For the whole process. 1 at the
// start. Not while a ParallelFor runs.
void SetWorkers(int count);
int Workers();

// Cores that this process may run on.
int UsableCores();

// Calls `body(first, last)` for parts of [begin, end), on several threads at once, and returns when
// all are done. Parts start at multiples of `grain` from `begin` and have that length, but for the
// last. The first exception of a body is thrown here, the rest of the parts is left out then.
// Callers on several threads take turns.
void ParallelFor(std::int64_t begin, std::int64_t end, std::int64_t grain,
                 const std::function<void(std::int64_t first, std::int64_t last)>& body);

}  // namespace ullage
