#include "optim/parameter_groups.h"

#include <algorithm>
#include <map>
#include <regex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::optim {

std::vector<bool> Matches(const std::string& pattern, const std::string& key,
                          const std::vector<layout::ParameterSpec>& parameters) {
  std::vector<bool> matches;
  try {
    const std::regex regex(pattern);
    for (const layout::ParameterSpec& spec : parameters) {
      matches.push_back(std::regex_search(spec.name, regex));
    }
  } catch (const std::regex_error& error) {
    throw ConfigError(
        fmt::format("{}: '{}' is no regular expression: {}", key, pattern, error.what()),
        "use ECMAScript syntax, such as \"bias$\" or \"layer\\\\.[0-3]\\\\.\"");
  }
  return matches;
}

Groups MakeGroups(const Settings& settings, const std::vector<std::string>& default_no_decay,
                  const std::vector<layout::ParameterSpec>& parameters) {
  const std::size_t count = parameters.size();
  const OptimizerSettings& optimizer = settings.optimizer;

  const bool own_no_decay = settings.ullage.no_decay.has_value();
  std::vector<bool> no_decay(count, false);
  for (const std::string& pattern : own_no_decay ? *settings.ullage.no_decay : default_no_decay) {
    const std::vector<bool> matches = Matches(pattern, "ullage.no_decay", parameters);
    bool found = false;
    for (std::size_t i = 0; i < count; ++i) {
      no_decay[i] = no_decay[i] || matches[i];
      found |= matches[i];
    }
    if (own_no_decay && !found) {
      throw ConfigError(
          fmt::format("ullage.no_decay: '{}' matches no parameter", pattern),
          "correct the pattern or take it out; patterns are searched in names such as '" +
              (count > 0 ? parameters.front().name : std::string()) + "'");
    }
  }

  std::vector<int> user_group(count, -1);
  const auto& user_groups = settings.ullage.parameter_groups;
  for (std::size_t g = 0; g < user_groups.size(); ++g) {
    const std::string key = fmt::format("ullage.parameter_groups[{}].pattern", g);
    const std::vector<bool> matches = Matches(user_groups[g].pattern, key, parameters);
    bool found = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (!matches[i] || user_group[i] >= 0 || !parameters[i].trainable) continue;
      user_group[i] = static_cast<int>(g);
      found = true;
    }
    if (!found) {
      throw ConfigError(fmt::format("{}: '{}' matches no trainable parameter that an earlier group "
                                    "has not taken",
                                    key, user_groups[g].pattern),
                        "correct the pattern or take the group out");
    }
  }

  Groups result;
  result.of_parameter.assign(count, 0);
  std::map<std::tuple<int, bool>, int> index_of;
  for (std::size_t i = 0; i < count; ++i) {
    if (!parameters[i].trainable) continue;
    const int g = user_group[i];
    const ParameterGroupSettings* own = g < 0 ? nullptr : &user_groups[static_cast<std::size_t>(g)];
    const bool without_decay =
        no_decay[i] && optimizer.weight_decay != 0 && !(own && own->weight_decay.has_value());
    const auto [entry, is_new] =
        index_of.try_emplace({g, without_decay}, static_cast<int>(result.groups.size()));
    if (is_new) {
      Group group;
      group.name = own == nullptr ? "default" : own->pattern;
      if (without_decay) group.name += " (no decay)";
      group.weight_decay = own && own->weight_decay ? *own->weight_decay
                           : without_decay          ? 0
                                                    : optimizer.weight_decay;
      if (own && own->lr_factor) group.lr_factor = *own->lr_factor;
      if (own && own->lr) {
        if (optimizer.lr <= 0) {
          throw ConfigError(
              fmt::format("ullage.parameter_groups[{}].lr: {} cannot be scheduled beside "
                          "optimizer.params.lr {}",
                          g, *own->lr, optimizer.lr),
              "give optimizer.params.lr a positive value");
        }
        group.lr_factor *= *own->lr / optimizer.lr;
      }
      result.groups.push_back(std::move(group));
    }
    Group& group = result.groups[static_cast<std::size_t>(entry->second)];
    group.parameters += 1;
    group.numel += parameters[i].numel;
    result.of_parameter[i] = entry->second;
  }
  if (result.groups.empty())
    result.groups.push_back({.name = "default", .weight_decay = optimizer.weight_decay});
  return result;
}

Groups MakeNamedGroups(const std::vector<NamedGroup>& named,
                       const std::vector<layout::ParameterSpec>& parameters) {
  std::unordered_map<std::string, std::size_t> index_of;
  for (std::size_t i = 0; i < parameters.size(); ++i) index_of.emplace(parameters[i].name, i);
  Groups result;
  std::vector<int> group_of(parameters.size(), -1);
  for (const NamedGroup& own : named) {
    Group group{.name = own.name, .lr = own.lr, .weight_decay = own.weight_decay};
    for (const std::string& name : own.parameters) {
      const auto found = index_of.find(name);
      if (found == index_of.end()) {
        throw ConfigError(
            fmt::format("parameter group '{}' names '{}', which the model does not have", own.name,
                        name),
            "take the groups from the model that is handed over");
      }
      int& member_of = group_of[found->second];
      if (member_of >= 0) {
        throw ConfigError(fmt::format("parameter '{}' is in two groups, '{}' and '{}'", name,
                                      named[static_cast<std::size_t>(member_of)].name, own.name),
                          "each parameter belongs to one group");
      }
      member_of = static_cast<int>(result.groups.size());
      const layout::ParameterSpec& spec = parameters[found->second];
      if (!spec.trainable) continue;
      group.parameters += 1;
      group.numel += spec.numel;
    }
    result.groups.push_back(std::move(group));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (group_of[i] < 0 && parameters[i].trainable) {
      throw ConfigError(
          fmt::format("parameter '{}' requires a gradient and is in no group of the optimizer",
                      parameters[i].name),
          "add it to a group, or call requires_grad_(False) on it");
    }
    result.of_parameter.push_back(std::max(group_of[i], 0));
  }
  return result;
}

std::vector<std::string> Groups::Lines() const {
  std::vector<std::string> lines;
  for (const Group& group : groups) {
    const std::string lr =
        group.lr ? fmt::format("lr {}", *group.lr) : fmt::format("lr x {}", group.lr_factor);
    lines.push_back(
        fmt::format("parameter group '{}': {} parameters, {} elements, {}, weight decay {}",
                    group.name, group.parameters, group.numel, lr, group.weight_decay));
  }
  return lines;
}

}  // namespace ullage::optim
