// Which instruction set the kernels use, and a way to choose another one.
//
// Note [Instruction sets]
// Each kernel is compiled once for every instruction set with fused multiply-add (AVX2, AVX-512;
// Highway picks at run time). Other CPUs run the plain reference, whose std::fma gives the same
// bits. Elementwise kernels hand the elements after the last whole vector to the reference too.
// All of them agree bit for bit, with one exception: which of several NaNs an arithmetic operation
// passes on is left to the CPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ullage::kernels {

// The one in use: "AVX3" (that is AVX-512), "AVX2", or "plain" for the reference.
std::string TargetName();

// All that this build and this CPU can run, best first.
std::vector<std::string> SupportedTargets();

// Makes every kernel use `name` from now on, in all threads; the empty name restores the best.
// For tests and for narrowing down a suspected miscompilation: not to be called while kernels run.
// Throws UnsupportedError when the CPU or the build does not offer it.
void UseTarget(std::string_view name);

}  // namespace ullage::kernels
