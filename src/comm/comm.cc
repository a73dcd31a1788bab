#include "comm/comm.h"

namespace ullage::comm {

std::string_view Name(Kind kind) {
  switch (kind) {
    case Kind::kBarrier:
      return "barrier";
    case Kind::kAllReduceSum:
      return "all_reduce_sum";
    case Kind::kAllReduceMin:
      return "all_reduce_min";
    case Kind::kAllReduceMax:
      return "all_reduce_max";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kExchangeSlices:
      return "exchange_slices";
    case Kind::kCreateWindow:
      return "create_window";
  }
  return "an unknown collective";
}

bool Comm::AllLocal() const {
  for (int r = 0; r < world_size(); ++r) {
    if (!IsLocal(r)) return false;
  }
  return true;
}

}  // namespace ullage::comm
