// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/host_list_refresh.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/streams/command_output.h"
#include "proto/contract/host_ranges.h"

namespace ivy {
namespace {

bool is_same(const Host& one, const Host& other) {
  return one.name == other.name && one.user == other.user && one.port == other.port;
}

std::string names_text(const std::vector<Host>& hosts) {
  std::vector<std::string> names;
  for (const Host& host : hosts) names.push_back(host.name);
  return fold_host_names(names) + (names.size() == 1 ? " is" : " are");
}

}  // namespace

std::vector<Host> hosts_not_in(const std::vector<Host>& list, const std::vector<Host>& others) {
  std::vector<Host> missing;
  for (const Host& host : list)
    if (std::none_of(others.begin(), others.end(),
                     [&](const Host& other) { return is_same(host, other); }))
      missing.push_back(host);
  return missing;
}

bool HostListRefresh::is_due() const {
  const Options& options = job_.options;
  return !options.hosts_from.empty() && !options.allocation && options.batch_job.empty();
}

void HostListRefresh::run(std::function<void()> done) {
  cancel();
  const auto post = [&loop = job_.loop](std::function<void()> task) {
    boost::asio::post(loop, std::move(task));
  };
  if (!pool_) pool_ = std::make_unique<BlockingPool>(post);
  cancel_ = std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  CommandRequest request = hosts_from_request(job_.options.hosts_from, job_.request.caller);
  request.cancel_fd = cancel_->get();
  const auto command = [request = std::move(request), open = cancel_] {
    return command_output(request);
  };
  // The command has its own deadline.
  task_ = pool_->run("the command of --hosts-from", BlockingPool::kNoDeadline, command,
                     [this, done = std::move(done)](const Result<std::string>& output) {
                       cancel_.reset();
                       take(output);
                       done();
                     });
}

void HostListRefresh::cancel() {
  if (!is_running()) return;
  pool_->forget(task_);
  eventfd_write(cancel_->get(), 1);
  cancel_.reset();
}

void HostListRefresh::take(const Result<std::string>& output) {
  const Result<std::vector<Host>> list =
      output.ok() ? parse_command_hosts(*output) : Result<std::vector<Host>>(output.error());
  if (!list.ok())
    return job_.print("warning: " + list.error().message + "; the hosts stay as they are");
  const std::vector<Host> added = hosts_not_in(*list, known_);
  if (!added.empty())
    job_.print("note: " + names_text(added) +
               " new in the list of --hosts-from, but no host can join a running job");
  known_ = *list;
  for (const Host& removed : hosts_not_in(job_.options.hosts, *list))
    for (std::size_t index = 0; index < job_.hosts.size(); ++index)
      if (is_same(*job_.hosts[index].host, removed)) leave_out(index);
}

void HostListRefresh::leave_out(std::size_t index) {
  const HostRecord& host = job_.hosts[index];
  if (host.excluded || host.lost || (!host.is_planned() && !host.is_spare)) return;
  if (job_.hosts.can_do_without(index))
    return job_.hosts.exclude(index, {.reason = "no longer in the list of --hosts-from"});
  job_.print("warning: " + host.name() + " is no longer in the list of --hosts-from, but " +
             (job_.hosts.may_lose_hosts()
                  ? job_.hosts.range_text() + " needs it"
                  : "the number of hosts is fixed (--nnodes MIN:MAX allows fewer)"));
}

}  // namespace ivy
