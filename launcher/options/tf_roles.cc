// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/tf_roles.h"

#include <algorithm>

#include "launcher/options/option_values.h"

namespace ivy {
namespace {

bool is_single(const std::string& type) { return type == "chief" || type == "evaluator"; }

Error wrong(std::string_view text, const std::string& why) {
  return Error{Code::kInvalidArgument, "\"" + std::string(text) + "\": " + why,
               "TYPE[:COUNT],... in rank order, such as chief,ps:2,worker; types: chief, worker, "
               "ps, evaluator"};
}

Result<TfRole> parse_task_role(std::string_view word) {
  TfRole role;
  const std::size_t colon = word.find(':');
  role.type = word.substr(0, colon);
  const bool is_known = is_single(role.type) || role.type == "worker" || role.type == "ps";
  if (!is_known) return wrong(word, "TensorFlow has no such task type");
  constexpr int kMax = 65536;
  if (colon != std::string_view::npos)
    role.count = IVY_TRY(parse_number(word.substr(colon + 1), 1, kMax));
  if (is_single(role.type) && role.count.value_or(1) != 1)
    return wrong(word, "there can be only one " + role.type);
  if (is_single(role.type)) role.count = 1;
  return role;
}

}  // namespace

Result<std::vector<TfRole>> parse_tf_roles(std::string_view text) {
  std::vector<TfRole> roles;
  std::string_view rest = text;
  while (true) {
    const std::string_view word = rest.substr(0, rest.find(','));
    roles.push_back(IVY_TRY(parse_task_role(word)));
    const auto is_same = [&](const TfRole& role) { return role.type == roles.back().type; };
    if (std::count_if(roles.begin(), roles.end(), is_same) > 1)
      return wrong(text, roles.back().type + " is listed twice");
    if (word.size() == rest.size()) break;
    rest.remove_prefix(word.size() + 1);
  }
  const auto is_open = [](const TfRole& role) { return !role.count; };
  if (std::count_if(roles.begin(), roles.end(), is_open) > 1)
    return wrong(text, "only one type may take the remaining ranks");
  return roles;
}

int min_ranks(const std::vector<TfRole>& roles) {
  int ranks = 0;
  for (const TfRole& role : roles) ranks += role.count.value_or(1);
  return ranks;
}

std::vector<TfTask> tf_tasks(const std::vector<TfRole>& roles, int world_size) {
  int counted = 0;
  for (const TfRole& role : roles) counted += role.count.value_or(0);
  std::vector<TfTask> tasks;
  for (const TfRole& role : roles) {
    const int count = role.count.value_or(world_size - counted);
    for (int i = 0; i < count && static_cast<int>(tasks.size()) < world_size; ++i)
      tasks.push_back({role.type, i});
  }
  const auto is_worker = [](const TfTask& task) { return task.type == "worker"; };
  int workers = static_cast<int>(std::count_if(tasks.begin(), tasks.end(), is_worker));
  while (static_cast<int>(tasks.size()) < world_size) tasks.push_back({"worker", workers++});
  return tasks;
}

}  // namespace ivy
