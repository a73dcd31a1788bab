#include "torchx/operator_traits.h"

#include <ATen/core/jit_type.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

#include "torchx/interception.h"

namespace ullage::torchx {
namespace {

using std::string_view;

// Take tensors for their shape and options only; or, as to(x, like), take one so and leave the
// bytes of the other to operators that they call.
constexpr std::array<string_view, 28> kMetadata = {"aten::empty_like",
                                                   "aten::expand_as",
                                                   "aten::reshape_as",
                                                   "aten::to",
                                                   "aten::view_as",
                                                   "aten::zeros_like",
                                                   "aten::ones_like",
                                                   "aten::full_like",
                                                   "aten::rand_like",
                                                   "aten::randn_like",
                                                   "aten::new_empty",
                                                   "aten::new_zeros",
                                                   "aten::new_ones",
                                                   "aten::new_full",
                                                   "aten::new_empty_strided",
                                                   "aten::is_same_size",
                                                   "aten::size",
                                                   "aten::stride",
                                                   "aten::sym_size",
                                                   "aten::sym_stride",
                                                   "aten::sym_numel",
                                                   "aten::sym_storage_offset",
                                                   "aten::_has_same_storage_numel",
                                                   "aten::_version",
                                                   "aten::is_pinned",
                                                   "aten::output_nr",
                                                   "aten::retains_grad",
                                                   "aten::requires_grad_"};

// Write their running statistics without saying so in the schema.
constexpr std::array<string_view, 8> kHiddenWriters = {"aten::batch_norm",
                                                       "aten::native_batch_norm",
                                                       "aten::cudnn_batch_norm",
                                                       "aten::_batch_norm_impl_index",
                                                       "aten::instance_norm",
                                                       "aten::batch_norm_update_stats",
                                                       "aten::batch_norm_gather_stats",
                                                       "aten::batch_norm_gather_stats_with_counts"};

// Take all weights of a layer stack at once and only hand them on to other operators: those
// gather one by one, so the peak stays that of one weight.
constexpr std::array<string_view, 5> kCallsOthers = {"aten::lstm", "aten::gru", "aten::rnn_tanh",
                                                     "aten::rnn_relu",
                                                     "aten::_native_multi_head_attention"};

template <std::size_t n>
bool Contains(const std::array<string_view, n>& names, string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool StartsWith(string_view text, string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

OperatorTraits Derive(const c10::FunctionSchema& schema) {
  static const auto optional_tensor = c10::OptionalType::create(c10::TensorType::get());
  OperatorTraits traits;
  traits.name = schema.name();
  traits.is_metadata = Contains(kMetadata, traits.name);
  traits.calls_others = Contains(kCallsOthers, traits.name);
  traits.is_foreign = !StartsWith(traits.name, "aten::") && !StartsWith(traits.name, "prims::");
  traits.is_collective = StartsWith(traits.name, "c10d::");
  const bool hides_writes = Contains(kHiddenWriters, traits.name);
  bool writes_any = false;
  bool aliases_any = false;
  for (const c10::Argument& argument : schema.arguments()) {
    const bool aliases = argument.alias_info() != nullptr;
    bool writes = aliases && argument.alias_info()->isWrite();
    writes_any |= writes;
    aliases_any |= aliases && !writes;
    traits.reads_other |= !aliases && argument.type()->isSubtypeOf(*optional_tensor);
    writes |= traits.is_foreign;
    writes |=
        hides_writes && (argument.name() == "running_mean" || argument.name() == "running_var");
    traits.writes.push_back(writes);
    traits.alias.push_back(aliases);
  }
  const auto returns_alias = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  traits.is_view = !traits.is_foreign && !writes_any && aliases_any && !schema.returns().empty() &&
                   std::all_of(schema.returns().begin(), schema.returns().end(), returns_alias);
  return traits;
}

}  // namespace

const OperatorTraits& TraitsOf(const c10::OperatorHandle& op) {
  static auto& mutex = *new std::shared_mutex;
  static auto& cache =
      *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OperatorTraits>>;
  const c10::FunctionSchema* key = &op.schema();
  {
    std::shared_lock lock(mutex);
    if (auto found = cache.find(key); found != cache.end()) return *found->second;
  }
  auto traits = std::make_unique<OperatorTraits>(Derive(*key));
  std::unique_lock lock(mutex);
  return *cache.try_emplace(key, std::move(traits)).first->second;
}

void InstallFallthroughs() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: the dispatcher may outlive this library's static objects.
    auto* library =
        new torch::Library(torch::Library::IMPL, "aten", kInterceptionKey, __FILE__, __LINE__);
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!StartsWith(name.name, "aten::")) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op) continue;
      const OperatorTraits& traits = TraitsOf(*op);
      if (!traits.is_metadata && (!traits.is_view || traits.reads_other)) continue;
      const std::string full =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      library->impl(full.c_str(), torch::CppFunction::makeFallthrough());
    }
  });
}

}  // namespace ullage::torchx
