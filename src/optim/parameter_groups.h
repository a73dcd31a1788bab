// Which hyper-parameters hold for which parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout/unit.h"
#include "ullage/settings.h"

namespace ullage::optim {

// Hyper-parameters that differ between groups. The scheduled learning rate is multiplied by
// lr_factor.
struct Group {
  std::string name;
  double lr_factor = 1;
  std::optional<double> lr = std::nullopt;  // instead of the scheduled one and the factor
  double weight_decay = 0;
  std::int64_t parameters = 0;  // trainable ones
  std::int64_t numel = 0;

  // What a step uses where the schedule says `scheduled`.
  double LrOf(double scheduled) const { return lr ? *lr : scheduled * lr_factor; }
};

struct Groups {
  std::vector<Group> groups;
  std::vector<int> of_parameter;  // index into groups; 0 for frozen parameters

  // One line for each group, for the start of a run.
  std::vector<std::string> Lines() const;
};

// The user's groups come first (the first pattern that matches holds); weight decay is off for
// what a no_decay pattern matches, in every group that does not set its own. Throws ConfigError
// when a pattern is no regular expression or matches no trainable parameter.
Groups MakeGroups(const Settings& settings, const std::vector<std::string>& default_no_decay,
                  const std::vector<layout::ParameterSpec>& parameters);

// The groups as they are given. Throws ConfigError when one names a parameter that does not exist
// or that another has, or when a trainable parameter is in none.
Groups MakeNamedGroups(const std::vector<NamedGroup>& named,
                       const std::vector<layout::ParameterSpec>& parameters);

// Whether `pattern` is found anywhere in each of `names`. Throws ConfigError naming `key` when it
// is no regular expression.
std::vector<bool> Matches(const std::string& pattern, const std::string& key,
                          const std::vector<layout::ParameterSpec>& parameters);

}  // namespace ullage::optim
