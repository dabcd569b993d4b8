// SPDX-License-Identifier: Apache-2.0
#include "launcher/ctl/ctl_agents.h"

#include <boost/asio/io_context.hpp>
#include <chrono>

#include "launcher/ctl/ctl_verbs.h"
#include "launcher/links/transport_context.h"

namespace ivy {
namespace {

constexpr std::chrono::milliseconds kDeadline{5'000};

// ask(loop, context, answered) queries all hosts; answered(host, answer) is called for each of
// them.
template <class Answer, class Query, class Take>
bool query_all(const std::vector<Host>& hosts, Query query, Take take) {
  boost::asio::io_context loop(1);
  const auto context = std::make_shared<TransportContext>(loop, Options{}, NodeProgram{});
  bool all_answered = true;
  std::size_t waiting = hosts.size();
  query(loop, context, [&](const Host& host, const Result<Answer>& answer) {
    if (answer.ok()) {
      take(host, *answer);
    } else {
      ctl_fail(answer.error().context(host.name));
      all_answered = false;
    }
    if (--waiting == 0) loop.stop();
  });
  loop.run();
  return all_answered;
}

}  // namespace

bool list_jobs_on(const std::vector<Host>& hosts,
                  const std::function<void(const Host& host, const JobEntry& job)>& take) {
  return query_all<std::vector<JobEntry>>(
      hosts,
      [&](auto& loop, const auto& context, auto answered) {
        list_jobs(loop, context, hosts, kDeadline, answered);
      },
      [&](const Host& host, const std::vector<JobEntry>& jobs) {
        for (const JobEntry& job : jobs) take(host, job);
      });
}

bool stop_job_on(const std::vector<Host>& hosts, const StopOrder& order,
                 const std::function<void(const Host& host, const StopAnswer& answer)>& take) {
  return query_all<StopAnswer>(
      hosts,
      [&](auto& loop, const auto& context, auto answered) {
        stop_job(loop, context, hosts, order, kDeadline, answered);
      },
      take);
}

}  // namespace ivy
