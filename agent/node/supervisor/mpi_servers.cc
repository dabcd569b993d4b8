// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/mpi_servers.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "agent/node/facts/own_package.h"
#include "agent/node/spawn/processor_share.h"
#include "proto/contract/env.h"
#include "proto/contract/host_ranges.h"
#include "proto/os/clock.h"
#include "proto/os/files.h"
#include "proto/os/own_program.h"
#include "proto/wire/mpi_names.h"

namespace ivy {
namespace {

// Longer, and the comparison of MPI libraries is left out.
constexpr std::chrono::seconds kLibraryPatience{30};

// This host's place among those of the job, which are numbered without the hosts that are gone.
std::uint32_t place_of(const HostPlan& plan) {
  std::uint32_t first = 0;
  std::uint32_t place = 0;
  for (const HostShare& share : plan.hosts()) {
    if (plan.workers(0).rank() < first + share.ranks()) break;
    first += share.ranks();
    ++place;
  }
  return place;
}

// The lists of all hosts.
std::vector<std::string> host_lists(const HostPlan& plan) {
  std::string ranks;
  std::string names;
  for (const HostShare& share : plan.hosts()) {
    ranks += (ranks.empty() ? "" : ",") + std::to_string(share.ranks());
    names += (names.empty() ? "" : ",") + share.name();
  }
  return {"--ranks-on-hosts", ranks, "--host-names", names};
}

// The arguments that both servers have.
std::vector<std::string> job_words(const HostPlan& plan, const SupervisorStart& start) {
  std::vector<std::string> words = {"--job",        start.job_id,
                                    "--generation", std::to_string(plan.generation()),
                                    "--host",       std::to_string(place_of(plan)),
                                    "--hosts",      std::to_string(plan.hosts_size()),
                                    "--directory",  start.directory.path};
  words.insert(words.end(), {"--token-file", start.directory.token_file()});
  if (!plan.mpi().store().empty()) words.insert(words.end(), {"--store", plan.mpi().store()});
  return words;
}

MpiServerStart start_of(std::string name, std::vector<std::string> role, const HostPlan& plan,
                        const SupervisorStart& start) {
  MpiServerStart result;
  result.name = std::move(name);
  result.arguments = std::move(role);
  for (std::string& word : job_words(plan, start)) result.arguments.push_back(std::move(word));
  result.long_arguments = host_lists(plan);
  result.in_step = start.step_task != 0;
  return result;
}

std::string pmix_name(const HostPlan& plan, const SupervisorStart& start) {
  constexpr std::size_t kTokenBytesMax = 4096;
  const std::string token =
      read_file(start.directory.token_file(), kTokenBytesMax).value_or(std::string());
  return pmix_namespace(start.job_id, plan.generation(), token);
}

bool is_oversubscribed(const HostPlan& plan) {
  std::uint32_t ranks = static_cast<std::uint32_t>(plan.workers_size());
  if (is_pretended_host(plan.hosts(static_cast<int>(place_of(plan))).name()))
    ranks = plan.world_size();
  return ranks > own_processor_count();
}

void set_variable(google::protobuf::RepeatedPtrField<Variable>& variables, EnvVariable wanted) {
  const auto known = std::find_if(variables.begin(), variables.end(),
                                  [&](const Variable& one) { return one.name() == wanted.name; });
  Variable& variable = known != variables.end() ? *known : *variables.Add();
  variable.set_name(std::move(wanted.name));
  variable.set_value(std::move(wanted.value));
}

// By -x or, where workers have it, by the supervisor's own environment.
bool is_set_by_user(const HostPlan& plan, const std::string& name) {
  for (const Variable& variable : plan.environment())
    if (variable.name() == name) return !is_old_mpi_setting(variable.value());
  const bool is_removed =
      std::find(plan.unset().begin(), plan.unset().end(), name) != plan.unset().end();
  const char* const own = is_removed ? nullptr : std::getenv(name.c_str());
  return own != nullptr && env_rule(name) != EnvRule::kScrub && !is_old_mpi_setting(own);
}

}  // namespace

void MpiServers::begin(HostPlan& plan) {
  servers_.clear();
  generation_ = plan.generation();
  has_failed_ = false;
  ranks_.begin(plan.mpi().required());
  if (!plan.has_mpi() || plan.workers_size() == 0) return;
  segments_ = mpich_segments(pmi_name(start_.job_id, generation_), place_of(plan));
  MpiServerStart pmi = start_of("the PMI server of this host", {"ivy-node", "pmi"}, plan, start_);
  pmi.program = node_program();
  pmi.socket = start_.directory.pmi_socket();
  MpiServerStart pmix = start_of("the PMIx server of this host", {"ivy-pmix"}, plan, start_);
  pmix.program = start_.program_directory + "/ivy-pmix";
  pmix.tidies_up = true;
  // If it is missing, clients of the socket report that they cannot find it; clients of the port,
  // which would each run alone, end the job.
  if (has_pmix_) pmix.socket = start_.directory.pmix_socket();
  MpiPlace place;
  place.pmi_port = listen(std::move(pmi), MPI_PMI1);
  place.pmix_port = listen(std::move(pmix), MPI_PMIX);
  if (place.pmi_port != 0 && place.pmix_port != 0) add_variables(plan, std::move(place));
}

void MpiServers::end() {
  servers_.clear();
  for (const std::string& segment : segments_) shm_unlink(segment.c_str());
  segments_.clear();
}

void MpiServers::add_variables(HostPlan& plan, MpiPlace place) const {
  place.size = plan.world_size();
  place.local_size = static_cast<std::uint32_t>(plan.workers_size());
  place.host = place_of(plan);
  place.host_name = plan.hosts(static_cast<int>(place.host)).name();
  place.pmix_namespace = pmix_name(plan, start_);
  place.directory = start_.directory.pmix_directory(plan.generation());
  for (WorkerSpec& worker : *plan.mutable_workers()) {
    place.rank = worker.rank();
    place.local_rank = worker.local_rank();
    for (EnvVariable& variable : mpi_place_variables(place))
      set_variable(*worker.mutable_environment(), std::move(variable));
  }
  const MpiSettings settings{.job_id = start_.job_id,
                             .segment_directory = pmix_segments_parent("/dev/shm", geteuid()) +
                                                  "/" + std::string(kPmixSegments) + start_.job_id +
                                                  "-" + std::to_string(place.host) + "-" +
                                                  std::to_string(plan.generation()),
                             .is_oversubscribed = is_oversubscribed(plan)};
  for (EnvVariable& variable : mpi_settings(settings))
    if (!is_set_by_user(plan, variable.name))
      set_variable(*plan.mutable_environment(), std::move(variable));
}

std::uint16_t MpiServers::listen(MpiServerStart start, MpiProtocol protocol) {
  MpiServer::Handlers handlers;
  handlers.born = handlers_.spare;
  handlers.event = [this, protocol](const std::string& line) { take(line, protocol); };
  handlers.note = [this](const std::string& line) { note(line); };
  handlers.lost = [this](const std::string& why) { fail(why); };
  Result<std::shared_ptr<MpiServer>> server =
      MpiServer::listen(loop_, std::move(start), std::move(handlers));
  if (!server.ok()) {
    note("MPI: " + server.error().message);
    return 0;
  }
  servers_.push_back(std::move(*server));
  return servers_.back()->port();
}

void MpiServers::take(const std::string& line, MpiProtocol protocol) {
  constexpr std::string_view kError = "error ";
  if (line.starts_with(kError)) return fail(line.substr(kError.size()));
  ranks_.take(line, monotonic_ns());
  for (const std::uint32_t rank : ranks_.take_new()) {
    Event event;
    event.mutable_mpi_joined()->set_generation(generation_);
    event.mutable_mpi_joined()->set_rank(rank);
    event.mutable_mpi_joined()->set_protocol(protocol);
    handlers_.send(event);
    unread_.push_back(event.mpi_joined());
  }
  read_libraries();
  tick(monotonic_ns());
}

// The launcher compares the libraries of all ranks, so each rank is reported again with its own. A
// file system that never answers leaves the comparison out.
void MpiServers::read_libraries() {
  if (unread_.empty() || std::exchange(is_reading_, true)) return;
  std::vector<pid_t> workers;
  for (const MpiJoined& joined : unread_) workers.push_back(handlers_.process_of(joined.rank()));
  blocking_.run(
      "the file system of the MPI library", kLibraryPatience,
      [libraries = libraries_, workers,
       ranks = std::exchange(unread_, {})]() mutable -> Result<std::vector<MpiJoined>> {
        for (std::size_t i = 0; i < ranks.size(); ++i)
          for (std::string& text : libraries->of_worker(workers[i]))
            ranks[i].add_libraries(std::move(text));
        return std::move(ranks);
      },
      [this](const Result<std::vector<MpiJoined>>& ranks) {
        if (!ranks.ok())
          return;  // Its thread may still use libraries_, so no other one is started.
        is_reading_ = false;
        for (const MpiJoined& joined : *ranks) {
          if (joined.libraries_size() == 0) continue;
          Event event;
          *event.mutable_mpi_joined() = joined;
          handlers_.send(event);
        }
        read_libraries();
      });
}

// Only the first reason of a generation counts.
void MpiServers::fail(const std::string& why) {
  if (std::exchange(has_failed_, true)) return;
  Event event;
  event.mutable_mpi_lost()->set_why(why);
  handlers_.send(event);
}

void MpiServers::note(const std::string& text) {
  Event event;
  event.mutable_note()->set_text(text);
  event.mutable_note()->set_warning(true);
  handlers_.send(event);
}

// A server writes what a rank does before it answers the rank, so all that counts has been written
// when the rank has ended.
MpiEnd MpiServers::judge(std::uint32_t rank, const ExitStatus& status) {
  if (servers_.empty()) return {};
  for (const std::shared_ptr<MpiServer>& server : servers_) server->drain();
  return ranks_.judge(rank, status);
}

void MpiServers::tick(std::uint64_t now_ns) {
  for (const std::uint32_t rank : ranks_.overdue(now_ns)) handlers_.kill(rank);
}

void MpiServers::reaped(pid_t pid, int wait_status) {
  for (const std::shared_ptr<MpiServer>& server : servers_)
    if (server->pid() == pid) return server->ended(wait_status);
}

}  // namespace ivy
