// The one torch version this is built and tested against.
//
// The rooms torchx, comm and memory use interfaces that change between torch releases without
// notice; another version would compile and then misbehave, so it is refused.
#pragma once

#include <torch/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
              "Ullage needs torch 2.11: install torch==2.11.0 and configure again");
