// SPDX-License-Identifier: Apache-2.0
// ivyctl stack: requests the ranks' stacks from the launcher, which queries the hosts.
#include <chrono>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/screen/json_text.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// gdb takes several seconds to read the symbols of a process that has loaded torch, and runs on
// four processes at a time.
constexpr milliseconds kHostsTimeout{40'000};
constexpr milliseconds kAnswerTimeout{45'000};

Result<std::string> request_stacks(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_running_job(options.job));
  ctl::Request request;
  ctl::DescribeStacks& stacks = *request.mutable_describe_stacks();
  stacks.set_native(options.native);
  stacks.set_patience_ms(static_cast<std::uint32_t>(kHostsTimeout.count()));
  IVY_CHECK(add_ranks(options.ranks, job.directory, *stacks.mutable_ranks()));
  const ctl::Reply reply = IVY_TRY(request_reply(job.directory, request, kAnswerTimeout));
  if (!reply.has_stacks() || reply.stacks().text().empty())
    return Error{Code::kFailedPrecondition, "no worker of this job runs now", "ivyctl ps"};
  return reply.stacks().text();
}

std::vector<std::string> lines_in(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) lines.emplace_back(take_part(text, '\n'));
  return lines;
}

}  // namespace

int ctl_stack(const CtlOptions& options) {
  const Result<std::string> text = request_stacks(options);
  if (options.json && text.ok())
    return ctl_print(json_line(
        boost::json::object{{"schema", kMachineSchema}, {"stacks", json_list(lines_in(*text))}}));
  return ctl_print(text);
}

}  // namespace ivy
