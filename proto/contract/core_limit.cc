// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/core_limit.h"

#include <sys/resource.h>

#include <mutex>
#include <optional>

namespace ivy {
namespace {

std::optional<rlim_t> users_limit;  // Set by leave_no_core(); empty in tests.
std::mutex mutex;
int starts_under_way = 0;

void set_soft_limit(rlim_t soft) {
  rlimit limit{};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = soft;
  setrlimit(RLIMIT_CORE, &limit);
}

}  // namespace

void leave_no_core() {
  rlimit limit{};
  if (users_limit || getrlimit(RLIMIT_CORE, &limit) != 0) return;
  users_limit = limit.rlim_cur;
  set_soft_limit(0);
}

std::optional<std::uint64_t> users_core_limit() { return users_limit; }

UsersCoreLimit::UsersCoreLimit() {
  const std::lock_guard lock(mutex);
  if (users_limit && ++starts_under_way == 1) set_soft_limit(*users_limit);
}

UsersCoreLimit::~UsersCoreLimit() {
  const std::lock_guard lock(mutex);
  if (users_limit && --starts_under_way == 0) set_soft_limit(0);
}

}  // namespace ivy
