// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/ranks/mpi_world.h"

#include <chrono>
#include <utility>
#include <vector>

#include "launcher/report/folded_ranks.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/remote_text.h"

namespace ivy {
namespace {

constexpr const char* kServed = "see docs/mpi.md for the programs that are supported";
constexpr const char* kSameEverywhere =
    "install one version of one MPI on every host, or use a shared directory (docs/mpi.md)";

std::string protocol_text(MpiProtocol protocol) {
  return protocol == MPI_PMIX ? "Open MPI (PMIx)" : "MPICH or a derivative (PMI-1)";
}

// Returns "Open MPI 4" for "Open MPI 4.1.4": releases of one major version are compatible.
std::string kind_of(const std::string& library) {
  const std::size_t digits = library.find_first_of("0123456789");
  return library.substr(0, library.find('.', digits == std::string::npos ? 0 : digits));
}

bool has_version(const std::string& library) {
  return library.find_first_of("0123456789") != std::string::npos;
}

bool are_compatible(const std::string& one, const std::string& other) {
  if (one.empty() || other.empty()) return true;
  if (has_version(one) && has_version(other)) return kind_of(one) == kind_of(other);
  return one.substr(0, other.size()) == other || other.substr(0, one.size()) == one;
}

}  // namespace

void MpiWorld::begin() {
  first_.reset();
  has_warned_of_two_ = false;
  timer_.cancel();
}

void MpiWorld::joined(std::size_t index, const MpiJoined& joined) {
  if (joined.generation() != job_.generation) return;
  WorkerRecord* const worker = job_.workers.of(index, joined.rank());
  if (worker == nullptr) return;
  worker->mpi_joined = true;
  const RemoteText library = joined.libraries_size() == 1 ? joined.libraries(0) : std::string();
  if (!first_) watch();
  // A rank is reported again once its library is known.
  if (!first_ ||
      (first_->library.empty() && !library.empty() && joined.protocol() == first_->protocol))
    first_ = First{index, joined.rank(), joined.protocol(), library};
  // Ranks with different protocols would wait for each other for ever.
  if (joined.protocol() != first_->protocol)
    return fail(job_.hosts[index].name(),
                difference(joined.rank(), protocol_text(joined.protocol()),
                           protocol_text(first_->protocol)),
                kSameEverywhere);
  // Ranks with incompatible libraries would fail at their first message, or hang.
  if (!are_compatible(library.bytes(), first_->library.bytes()))
    return fail(job_.hosts[index].name(),
                difference(joined.rank(), library.line(), first_->library.line()), kSameEverywhere);
  if (joined.libraries_size() > 1) warn_of_two(index, joined);
  check_absent();
}

std::string MpiWorld::difference(std::uint32_t rank, const std::string& its,
                                 const std::string& first) const {
  return "rank " + std::to_string(rank) + " has " + its + ", and rank " +
         std::to_string(first_->rank) + " (" + job_.hosts[first_->host].name() + ") has " + first;
}

// A library that a program loads may bring another MPI than the program's own. Some programs work
// with both, so this is only a warning.
void MpiWorld::warn_of_two(std::size_t index, const MpiJoined& joined) {
  if (std::exchange(has_warned_of_two_, true)) return;
  std::string both;
  for (const std::string& library : joined.libraries())
    both += (both.empty() ? "" : " and ") + RemoteText(library).line();
  job_.screen.print(render(Diagnostic{
      .severity = Severity::kWarning,
      .id = "IVY-P025",
      .what = "rank " + std::to_string(joined.rank()) + " loaded two MPI libraries: " + both,
      .where = job_.hosts[index].name(),
      .fix = "build everything that the program uses with the same one: ldd shows which library "
             "needs the other one"}));
}

void MpiWorld::lost(std::size_t index, const MpiLost& lost) {
  fail(job_.hosts[index].name(), RemoteText(lost.why()).line(), kServed);
}

// A host's supervisor sees only its own ranks; only the launcher knows that other ranks wait for
// them.
void MpiWorld::check_absent() {
  if (!first_) return;
  for (const WorkerRecord& worker : job_.workers)
    if (worker.ended && worker.mpi_absent)
      return fail(worker.end.host,
                  "rank " + std::to_string(worker.end.rank) +
                      " exited with code 0 before MPI_Init: the other ranks "
                      "wait for it there",
                  kServed, 1);
}

void MpiWorld::watch() {
  timer_.expires_after(job_.options.start_timeout);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !job_.is_muted && job_.phase.state() == JobState::kRunning) warn_of_absent();
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
  job_.screen.print(
      render(Diagnostic{.severity = Severity::kWarning,
                        .id = "IVY-R015",
                        .what = named_ranks(absent) + (absent.size() == 1 ? " has" : " have") +
                                " not called MPI_Init within " + std::to_string(seconds.count()) +
                                " s (--start-timeout) of the first that did: rank " +
                                std::to_string(first_->rank) + " waits there",
                        .where = fold_host_names(hosts),
                        .fix = "ivyctl stack shows where each of them is"}));
}

void MpiWorld::fail(const std::string& where, const std::string& cause, const std::string& fix,
                    int exit_code) {
  if (job_.is_muted) return;
  job_.end_because(LauncherReason::kStoreLost,
                   Diagnostic{.id = "IVY-R013",
                              .what = "the MPI ranks cannot reach each other",
                              .where = where,
                              .cause = cause,
                              .fix = fix,
                              .exit_code = exit_code});
  job_.phase.apply(JobEvent::kHostLost);
}

}  // namespace ivy
