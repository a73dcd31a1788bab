#pragma once
#include <chrono>
#include <memory>
namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};
}  // namespace gloo
