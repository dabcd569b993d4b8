// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/pmix_host.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "agent/pmix/event_line.h"
#include "agent/pmix/mpi_variables.h"
#include "agent/pmix/pmix_library.h"
#include "proto/os/files.h"
#include "proto/wire/mpi_names.h"

namespace ivy {
namespace {

std::optional<store::ClientOptions> store_of(const MpiServerOptions& options,
                                             const std::string& token) {
  if (options.store.empty()) return std::nullopt;
  store::ClientOptions store;
  store.address = options.store;
  store.job_id = options.job_id;
  store.token = token;
  store.generation = options.generation;
  return store;
}

}  // namespace

PmixHost::PmixHost(MpiServerOptions options, const std::string& secret, PmixLines& lines)
    : options_(std::move(options)),
      lines_(lines),
      layout_(options_.ranks_on_hosts, options_.host_names),
      name_(pmix_namespace(options_.job_id, options_.generation, secret)),
      exchange_(options_.host, layout_.hosts(), store_of(options_, secret)),
      direct_(*this),
      contexts_(options_.host, layout_.hosts()) {}

Result<void> PmixHost::serve(const Directories& directories, const std::vector<int>& until) {
  directories_ = directories;
  if (options_.loopback_fd >= 0)
    relay_loopback(Descriptor(options_.loopback_fd),
                   [this](pid_t process) { return port(process); });
  RankSocket socket(
      Descriptor(options_.listen_fd),
      [this](std::uint32_t rank, const RankSocket::Peer& peer) { return variables(rank, peer); });
  return socket.serve(until);
}

Result<void> PmixHost::start(const RankProcess& rank) {
  const char* const chosen = getenv("IVY_PMIX_LIB");
  const PmixLibrary pmix =
      IVY_TRY(open_pmix_library(pmix_library_paths(chosen == nullptr ? "" : chosen, rank)));
  server_ = IVY_TRY(PmixServer::start(pmix, setup(), *this));
  exchange_.warm_up();
  return {};
}

Result<void> PmixHost::ensure_started(const RankProcess& rank) {
  if (server_ == nullptr && !no_server_) {
    const Result<void> started = start(rank);
    if (!started.ok()) no_server_ = started.error();
  }
  if (no_server_) return *no_server_;
  return {};
}

// Only libpmix learns which rank the process is, so all ranks are registered. A rejected process
// would continue in a world of one rank, so a failure ends the job.
Result<std::uint16_t> PmixHost::port(pid_t process) {
  const std::lock_guard lock(mutex_);
  const Result<void> ready = ensure_started(read_rank_process(process));
  if (!ready.ok()) {
    const Error& why = ready.error();
    lines_.send_line(error_line(why.fix.empty() ? why.message : why.message + "; " + why.fix));
    return why;
  }
  Result<std::uint16_t> port = 0;
  const std::uint32_t first = layout_.first_rank(options_.host);
  for (std::uint32_t rank = first; rank < first + layout_.ranks_on(options_.host); ++rank)
    port = IVY_TRY(server_->port(rank, group_of_process(process)));
  return port;
}

PmixSetup PmixHost::setup() const {
  PmixSetup setup;
  setup.name = name_;
  setup.host = options_.host;
  setup.server_directory = directories_.server;
  setup.host_name = layout_.name(options_.host);
  setup.ranks_here = layout_.ranks_on(options_.host);
  setup.facts = job_facts({.layout = layout_,
                           .host = options_.host,
                           .job = "ivyrun." + options_.job_id.substr(0, 8),
                           .session_directory = directories_.session,
                           .generation = options_.generation,
                           .is_oversubscribed = is_oversubscribed()});
  return setup;
}

bool PmixHost::is_oversubscribed() const {
  // As many as the kernel can have; it rejects a set that is too small.
  constexpr int kMaxProcessors = 8192;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxProcessors);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> processors(
      CPU_ALLOC(kMaxProcessors), [](cpu_set_t* set) { CPU_FREE(set); });
  if (sched_getaffinity(0, bytes, processors.get()) != 0) return false;
  // Simulated hosts share a machine.
  const std::uint32_t ranks =
      layout_.is_fake(options_.host) ? layout_.ranks() : layout_.ranks_on(options_.host);
  return ranks > static_cast<std::uint32_t>(CPU_COUNT_S(bytes, processors.get()));
}

void PmixHost::on_joined(std::uint32_t rank) { lines_.send_line(joined_line(rank)); }
void PmixHost::on_left(std::uint32_t rank) { lines_.send_line(left_line(rank)); }
void PmixHost::on_vanished(std::uint32_t rank) { lines_.send_line(vanished_line(rank)); }

void PmixHost::on_aborted(std::uint32_t rank, int code, std::string_view text) {
  lines_.send_line(abort_line(rank, code, text));
}

void PmixHost::on_spawn_rejected(std::uint32_t rank) {
  write_all(STDERR_FILENO, spawn_rejected(rank) + "\n");
}

Result<std::vector<std::string>> PmixHost::variables(std::uint32_t rank,
                                                     const RankSocket::Peer& peer) {
  if (!layout_.has(rank) || layout_.locate(rank).host != options_.host)
    return Error{Code::kInvalidArgument, "host " + layout_.name(options_.host) + " has the ranks " +
                                             layout_.local_peers(options_.host)};
  const RankProcess process = read_rank_process(peer.process);
  const std::lock_guard lock(mutex_);
  IVY_CHECK(ensure_started(process));
  std::vector<std::string> from_libpmix = IVY_TRY(server_->variables(rank, peer.group));
  const WorkerSettings settings = {.job_id = options_.job_id,
                                   .is_oversubscribed = is_oversubscribed(),
                                   .segment_directory = directories_.segments};
  return mpi_variables(std::move(from_libpmix), settings, process);
}

void PmixHost::on_fence(std::vector<std::uint32_t> ranks, std::string own, BlobAnswer answer) {
  const Result<FenceGroup> group = fence_group(layout_, std::move(ranks));
  if (!group.ok()) return answer(group.error());
  if (group->name.empty()) direct_.on_fence(!own.empty());
  exchange_.fence(*group, std::move(own), [this, answer](const Result<std::string>& all) {
    if (!all.ok()) report_failed_fence(all.error());
    answer(all);
  });
}

void PmixHost::on_group(GroupRequest request, GroupAnswer answer) {
  Result<FenceGroup> group = named_group(layout_, std::move(request.ranks), request.id);
  if (!group.ok()) return answer(group.error());
  group->is_last = request.is_end;
  std::string own = std::move(request.own);
  if (group->hosts.front() == options_.host) own = with_context(contexts_.next(), own);
  exchange_.fence(*group, std::move(own), [this, answer](const Result<std::string>& all) {
    if (all.ok()) return answer(group_result(*all));
    report_failed_fence(all.error());
    answer(all.error());
  });
}

// The ranks' own message would not name the reason. Cancelled fences are not reported: they occur
// only at the job's end.
void PmixHost::report_failed_fence(const Error& why) {
  if (why.code == Code::kCancelled) return;
  lines_.send_line(error_line("the MPI ranks on host " + layout_.name(options_.host) +
                              " cannot reach the others: " + why.message));
}

void PmixHost::on_data_request(std::uint32_t rank, BlobAnswer answer) {
  direct_.request(rank, std::move(answer));
}

void PmixHost::publish_local_data() {
  const std::uint32_t first = layout_.first_rank(options_.host);
  for (std::uint32_t rank = first; rank < first + layout_.ranks_on(options_.host); ++rank)
    server_->read(rank, [this, rank](Result<std::string> blob) {
      exchange_.publish(rank, blob.ok() ? std::move(blob).value() : std::string());
    });
}

void PmixHost::fetch_data(std::uint32_t rank, BlobAnswer answer) {
  exchange_.fetch(rank, std::move(answer));
}

}  // namespace ivy
