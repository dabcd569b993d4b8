// What a rank that asks has in its environment and on its command line: libraries that only its own
// Python environment has, and settings of its user that go before ours. Thread: any.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace ivy {

struct RankProcess {
  std::vector<std::string> environment;  // NAME=VALUE, as the process was started with.
  std::vector<std::string> arguments;

  // Empty where it is not set.
  std::string variable(std::string_view name) const;
};

// Empty where the process is gone, or in a namespace that we do not see.
RankProcess read_rank_process(pid_t pid);

}  // namespace ivy
