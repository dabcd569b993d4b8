#include "launcher/job/mpi_world.h"

#include <chrono>
#include <vector>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

std::string protocol_text(MpiProtocol protocol) {
  return protocol == MPI_PMIX ? "Open MPI (PMIx)" : "MPICH or its kin (PMI-1)";
}

}  // namespace

void MpiWorld::begin() {
  first_.reset();
  timer_.cancel();
}

void MpiWorld::joined(std::size_t index, const MpiJoined& joined) {
  if (joined.generation() != job_.generation) return;
  WorkerRecord* const worker = job_.workers.of(index, joined.rank());
  if (worker == nullptr) return;
  worker->mpi_joined = true;
  if (!first_) {
    first_ = First{index, joined.rank(), joined.protocol()};
    watch();
  }
  // They would wait for each other for ever.
  if (joined.protocol() != first_->protocol)
    return fail(job_.hosts[index].name(),
                "rank " + std::to_string(joined.rank()) + " has " +
                    protocol_text(joined.protocol()) + ", and rank " +
                    std::to_string(first_->rank) + " (" + job_.hosts[first_->host].name() +
                    ") has " + protocol_text(first_->protocol),
                kExitRefused);
  check_absent();
}

void MpiWorld::lost(std::size_t index, const MpiLost& lost) {
  fail(job_.hosts[index].name(), RemoteText(lost.why()).line(), kExitRefused);
}

// The supervisor of a host sees its own ranks only: which ones others wait for is known here.
void MpiWorld::check_absent() {
  if (!first_) return;
  for (const WorkerRecord& worker : job_.workers)
    if (worker.ended && worker.mpi_absent)
      return fail(worker.end.host,
                  "rank " + std::to_string(worker.end.rank) +
                      " ended with exit 0 before MPI_Init: the other ranks "
                      "wait for it there",
                  1);
}

void MpiWorld::watch() {
  timer_.expires_after(job_.options.start_timeout);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !job_.concluded && job_.phase.state() == JobState::kRunning) warn_of_absent();
  });
}

void MpiWorld::warn_of_absent() {
  std::vector<int> absent;
  std::vector<std::string> hosts;
  for (const WorkerRecord& worker : job_.workers) {
    if (worker.ended || worker.mpi_joined) continue;
    absent.push_back(worker.end.rank);
    if (hosts.empty() || hosts.back() != job_.hosts[worker.host].name())
      hosts.push_back(job_.hosts[worker.host].name());
  }
  if (absent.empty()) return;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(job_.options.start_timeout);
  job_.screen.say(
      render(Diagnostic{.severity = Severity::kWarning,
                        .id = "IVY-R015",
                        .what = named_ranks(absent) + (absent.size() == 1 ? " has" : " have") +
                                " not called MPI_Init within " + std::to_string(seconds.count()) +
                                " s (--start-timeout) of the first that did: rank " +
                                std::to_string(first_->rank) + " waits there",
                        .where = fold_host_names(hosts),
                        .fix = "ivyctl stack shows where each of them is"}));
}

void MpiWorld::fail(const std::string& where, const std::string& cause, int exit_code) {
  if (job_.concluded) return;
  job_.end_because(LauncherReason::kStoreLost,
                   Diagnostic{.id = "IVY-R013",
                              .what = "MPI's ranks cannot meet",
                              .where = where,
                              .cause = cause,
                              .fix = "docs/mpi.md says which programs are served, and how",
                              .exit_code = exit_code});
  job_.phase.apply(JobEvent::kHostLost);
}

}  // namespace ivy
