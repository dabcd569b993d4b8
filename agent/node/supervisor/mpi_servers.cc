#include "agent/node/supervisor/mpi_servers.h"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "agent/node/facts/own_package.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

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

// What both servers are told.
std::vector<std::string> job_words(const HostPlan& plan, const SupervisorStart& start) {
  std::string ranks;
  std::string names;
  for (const HostShare& share : plan.hosts()) {
    ranks += (ranks.empty() ? "" : ",") + std::to_string(share.ranks());
    names += (names.empty() ? "" : ",") + share.name();
  }
  std::vector<std::string> words = {"--job",
                                    start.job_id,
                                    "--generation",
                                    std::to_string(plan.generation()),
                                    "--host",
                                    std::to_string(place_of(plan)),
                                    "--hosts",
                                    std::to_string(plan.hosts_size()),
                                    "--ranks-on-hosts",
                                    ranks,
                                    "--host-names",
                                    names,
                                    "--directory",
                                    start.directory.path};
  if (!plan.mpi().store().empty())
    words.insert(words.end(),
                 {"--store", plan.mpi().store(), "--token-file", start.directory.token_file()});
  return words;
}

MpiServerStart start_of(std::string name, std::vector<std::string> role, const HostPlan& plan,
                        const SupervisorStart& start) {
  MpiServerStart result;
  result.name = std::move(name);
  result.arguments = std::move(role);
  for (std::string& word : job_words(plan, start)) result.arguments.push_back(std::move(word));
  result.in_step = start.step_task != 0;
  return result;
}

}  // namespace

void MpiServers::begin(const HostPlan& plan) {
  servers_.clear();
  generation_ = plan.generation();
  has_failed_ = false;
  has_joined_ = false;
  ranks_.begin(plan.mpi().required());
  if (!plan.has_mpi() || plan.workers_size() == 0) return;
  MpiServerStart pmi = start_of("the PMI server of this host", {"ivy-node", "pmi"}, plan, start_);
  pmi.program = "/proc/self/exe";
  pmi.socket = start_.directory.pmi_socket();
  listen(std::move(pmi));
  MpiServerStart pmix = start_of("the PMIx server of this host", {"ivy-pmix"}, plan, start_);
  pmix.program = program_directory() + "/ivy-pmix";
  pmix.tidies_up = true;
  pmix.socket = start_.directory.pmix_socket();
  // Where it is missing, clients find no socket and say so.
  if (access(pmix.program.c_str(), X_OK) == 0) listen(std::move(pmix));
}

void MpiServers::listen(MpiServerStart start) {
  MpiServer::Handlers handlers;
  handlers.born = handlers_.spare;
  handlers.event = [this](const std::string& line) { take(line); };
  handlers.note = [this](const std::string& line) { note(line); };
  handlers.lost = [this](const std::string& why) { fail(why); };
  Result<std::unique_ptr<MpiServer>> server =
      MpiServer::listen(loop_, std::move(start), std::move(handlers));
  if (!server.ok()) return note("MPI: " + server.error().message);
  servers_.push_back(std::move(*server));
}

void MpiServers::take(const std::string& line) {
  constexpr std::string_view kError = "error ";
  if (line.starts_with(kError)) return fail(line.substr(kError.size()));
  ranks_.take(line, monotonic_ns());
  if (ranks_.has_joined() && !std::exchange(has_joined_, true)) {
    Event event;
    event.mutable_mpi_joined()->set_generation(generation_);
    handlers_.send(event);
  }
  tick(monotonic_ns());
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
  for (const std::unique_ptr<MpiServer>& server : servers_) server->drain();
  return ranks_.judge(rank, status);
}

void MpiServers::tick(std::uint64_t now_ns) {
  for (const std::uint32_t rank : ranks_.overdue(now_ns)) handlers_.kill(rank);
}

void MpiServers::reaped(pid_t pid, int wait_status) {
  for (const std::unique_ptr<MpiServer>& server : servers_)
    if (server->pid() == pid) return server->ended(wait_status);
}

}  // namespace ivy
