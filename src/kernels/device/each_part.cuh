// The loop of elementwise kernels over many ranges at once. Internal to the room.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/device/launch.h"
#include "kernels/device/part_table.h"

namespace ullage::kernels::device {

// A Table is derived from PartTable and has
//   BodyOf(int part) const     a body of each_element.cuh for the elements of that part
// A block does a tile at a time; a thread has loaded all its elements of a whole tile before it
// computes the first (Note [Elementwise kernels]).
template <int kWidth, class Table>
__global__ void __launch_bounds__(kThreads) EachPart(const __grid_constant__ Table table) {
  constexpr int kUnroll = static_cast<int>(Table::kTile / (kThreads * kWidth));
  static_assert(kUnroll * kThreads * kWidth == Table::kTile);
  const uint32_t tiles = table.tiles();
  int part = 0;
  for (uint32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
    const Tile tile = TileAt(table, number, part);
    part = tile.part;
    const auto body = table.BodyOf(part);
    int64_t i = tile.begin + threadIdx.x * kWidth;
    if (tile.end - tile.begin == Table::kTile) {
      decltype(body.template Load<kWidth>(0)) values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        values[u] = body.template Load<kWidth>(i + u * kThreads * kWidth);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        body.template Store<kWidth>(i + u * kThreads * kWidth, values[u]);
      }
      continue;
    }
    for (; i + kWidth <= tile.end; i += kThreads * kWidth) {
      body.template Store<kWidth>(i, body.template Load<kWidth>(i));
    }
    if constexpr (kWidth > 1) {
      const int64_t rest = tile.end - (tile.end - tile.begin) % kWidth + threadIdx.x;
      if (rest < tile.end) body.template Store<1>(rest, body.template Load<1>(rest));
    }
  }
}

// Collects parts and launches a table when it is full.
template <int kWidth, class Table>
class PartLauncher {
 public:
  // Tables begin as copies of `empty`, which holds what all parts have in common.
  PartLauncher(const char* kernel, const Table& empty, Stream stream)
      : kernel_(kernel), aligned_(empty), other_(empty), stream_(stream) {
    static_assert(sizeof(Table) <= kMaxArgumentBytes);
  }

  // `arrays`: those of the part; whether all start at multiples of 16 bytes decides how they are
  // accessed.
  template <class Part>
  void Add(const Part& part, int64_t n, std::initializer_list<const void*> arrays) {
    if (n <= 0) return;
    uintptr_t addresses = 0;
    for (const void* array : arrays) addresses |= reinterpret_cast<uintptr_t>(array);
    if (addresses % 16 == 0) {
      AddTo<kWidth>(aligned_, part, n);
    } else {
      AddTo<1>(other_, part, n);
    }
  }

  // Launches what is left.
  void Finish() {
    Launch<kWidth>(aligned_);
    Launch<1>(other_);
  }

 private:
  template <int kAccess, class Part>
  void AddTo(Table& table, const Part& part, int64_t n) {
    if (table.IsFull()) Launch<kAccess>(table);
    table.Add(part, n);
  }

  template <int kAccess>
  void Launch(Table& table) {
    if (table.count == 0) return;
    const unsigned blocks = Blocks(int64_t{table.tiles()} * kThreads);
    EachPart<kAccess><<<blocks, kThreads, 0, CudaStream(stream_)>>>(table);
    Check(cudaGetLastError(), kernel_);
    table.count = 0;
  }

  const char* kernel_;
  Table aligned_, other_;
  Stream stream_;
};

}  // namespace ullage::kernels::device
