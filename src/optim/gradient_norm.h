// The global norm of the gradient: one pass over the owned sums, one exchange between ranks.
#pragma once

#include <string>

#include "comm/comm.h"
#include "grads/gradient_reducer.h"

namespace ullage::optim {

struct GradientNorm {
  double sum_of_squares = 0;  // of the summed gradients, finite elements only
  bool is_finite = true;      // on every rank
  int overflowed = -1;        // the first parameter, in order, with an inf or nan; -1: none
};

// Collective, once for each step: it is also the exchange after which no rank reads old weights
// any more. The result is the same on every rank and does not depend on how the gradients are
// split over ranks and units. Pass the step's number as `item`.
GradientNorm MeasureGradient(const plan::Plan& plan, const grads::GradientReducer& gradients,
                             comm::Comm& comm, std::uint32_t item);

}  // namespace ullage::optim
