// SPDX-License-Identifier: Apache-2.0
// Server, the first half, is one server process for one generation: its listening sockets, its
// start when the first client connects (spawn()), and its end. MpiServers, the second half, has up
// to two of them. begin() opens the sockets and adds their addresses to the workers' variables,
// take() reads the lines that a server writes about its ranks, and classify() uses them when a
// worker exits: did it exit between MPI_Init and MPI_Finalize?
#include "agent/node/supervisor/mpi_servers.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "agent/node/facts/own_package.h"
#include "agent/node/spawn/processor_share.h"
#include "agent/node/spawn/server_child.h"
#include "agent/node/supervisor/server_lines.h"
#include "proto/contract/env.h"
#include "proto/contract/host_ranges.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/listening_socket.h"
#include "proto/os/own_program.h"
#include "proto/wire/mpi_names.h"

namespace ivy {
namespace {

// If reading takes longer, the comparison of MPI libraries is skipped.
constexpr std::chrono::seconds kLibraryTimeout{30};

// Returns this host's index among the job's remaining hosts.
std::uint32_t index_of(const HostPlan& plan) {
  std::uint32_t first = 0;
  std::uint32_t index = 0;
  for (const HostShare& share : plan.hosts()) {
    if (plan.workers(0).rank() < first + share.ranks()) break;
    first += share.ranks();
    ++index;
  }
  return index;
}

// Returns arguments with the lists of all hosts.
std::vector<std::string> host_lists(const HostPlan& plan) {
  std::string ranks;
  std::string names;
  for (const HostShare& share : plan.hosts()) {
    ranks += (ranks.empty() ? "" : ",") + std::to_string(share.ranks());
    names += (names.empty() ? "" : ",") + share.name();
  }
  return {"--ranks-on-hosts", ranks, "--host-names", names};
}

// Returns the arguments of `role` that both servers take.
std::vector<std::string> arguments_for(std::vector<std::string> role, const HostPlan& plan,
                                       const SupervisorStart& start) {
  role.insert(role.end(),
              {"--job", start.job_id, "--generation", std::to_string(plan.generation()), "--host",
               std::to_string(index_of(plan)), "--hosts", std::to_string(plan.hosts_size()),
               "--directory", start.directory.path, "--token-file", start.directory.token_file()});
  if (!plan.mpi().store().empty()) role.insert(role.end(), {"--store", plan.mpi().store()});
  return role;
}

std::string pmix_name(const HostPlan& plan, const SupervisorStart& start) {
  constexpr std::size_t kTokenBytesMax = 4096;
  const std::string token =
      read_file(start.directory.token_file(), kTokenBytesMax).value_or(std::string());
  return pmix_namespace(start.job_id, plan.generation(), token);
}

bool is_oversubscribed(const HostPlan& plan) {
  std::uint32_t ranks = static_cast<std::uint32_t>(plan.workers_size());
  if (is_fake_host(plan.hosts(static_cast<int>(index_of(plan))).name())) ranks = plan.world_size();
  return ranks > own_processor_count();
}

void set_variable(google::protobuf::RepeatedPtrField<Variable>& variables, EnvVariable wanted) {
  const auto known = std::find_if(variables.begin(), variables.end(),
                                  [&](const Variable& one) { return one.name() == wanted.name; });
  Variable& variable = known != variables.end() ? *known : *variables.Add();
  variable.set_name(std::move(wanted.name));
  variable.set_value(std::move(wanted.value));
}

// Returns true if the user has set the variable with -x, or in the supervisor's own environment if
// workers inherit it.
bool is_set_by_user(const HostPlan& plan, const std::string& name) {
  for (const Variable& variable : plan.environment())
    if (variable.name() == name) return !is_old_mpi_setting(variable.value());
  const bool is_removed =
      std::find(plan.unset().begin(), plan.unset().end(), name) != plan.unset().end();
  const char* const own = is_removed ? nullptr : std::getenv(name.c_str());
  return own != nullptr && env_rule(name) != EnvRule::kScrub && !is_old_mpi_setting(own);
}

}  // namespace

class MpiServers::Server final : public std::enable_shared_from_this<Server>,
                                 private ServerLinesEvents {
 public:
  Server(SupervisorContext& context, MpiServers& owner, MpiProtocol protocol)
      : context_(context),
        owner_(owner),
        protocol_(protocol),
        listener_(context.loop),
        loopback_(context.loop),
        events_(context.loop, *this),
        notes_(context.loop, *this) {}
  ~Server();

  Result<void> listen(const HostPlan& plan, bool has_pmix);
  pid_t pid() const { return pid_; }  // 0 if not started, or exited.
  std::uint16_t port() const { return port_; }
  // Handles the events that have arrived already.
  void drain() { events_.read_some(); }
  void ended(int wait_status);

 private:
  using Listener = boost::asio::posix::stream_descriptor;

  // ServerLinesEvents
  void server_line(ServerLines& from, const std::string& line) override {
    &from == &notes_ ? owner_.note(line) : owner_.take(line, protocol_);
  }

  std::string name() const {
    return protocol_ == MPI_PMIX ? "the PMIx server of this host" : "the PMI server of this host";
  }
  void wait_for_client(Listener& listener);
  void stop_listening();
  ServerChild child_of(int in, int out, int err);
  void spawn();
  void fail(const std::string& why);

  SupervisorContext& context_;
  MpiServers& owner_;
  const MpiProtocol protocol_;
  std::vector<std::string> arguments_;
  std::vector<std::string> long_arguments_;
  std::string socket_;  // Path of the socket; empty if the server has only the port.
  Listener listener_;
  Listener loopback_;
  std::uint16_t port_ = 0;
  ServerLines events_;
  ServerLines notes_;  // Lines for the user.
  Descriptor exec_error_;
  Descriptor stdin_;  // The process exits when this is closed.
  pid_t pid_ = 0;
  bool has_failed_ = false;
};

MpiServers::Server::~Server() {
  stop_listening();
  stdin_.reset();
  // ivy-pmix cleans up after its standard input was closed, and then exits.
  if (pid_ != 0 && protocol_ != MPI_PMIX) kill(pid_, SIGKILL);
  unlink(socket_.c_str());
}

Result<void> MpiServers::Server::listen(const HostPlan& plan, bool has_pmix) {
  const SupervisorStart& start = context_.start;
  long_arguments_ = host_lists(plan);
  if (protocol_ == MPI_PMIX) {
    arguments_ = arguments_for({"ivy-pmix"}, plan, start);
    // If ivy-pmix is missing, clients of the socket report that. A client of the port would run in
    // a world of one, so then the failed start of ivy-pmix ends the job.
    if (has_pmix) socket_ = start.directory.pmix_socket();
  } else {
    arguments_ = arguments_for({"ivy-node", "pmi"}, plan, start);
    socket_ = start.directory.pmi_socket();
  }
  if (!socket_.empty()) {
    // The job's directory is private, so a socket with this name is left from the previous
    // generation.
    unlink(socket_.c_str());
    listener_.assign(IVY_TRY(listen_unix(socket_, SOCK_STREAM, SOMAXCONN)));
    wait_for_client(listener_);
  }
  loopback_.assign(IVY_TRY(listen_tcp("127.0.0.1", 0)));
  wait_for_client(loopback_);
  port_ = bound_port(loopback_.native_handle());
  return {};
}

void MpiServers::Server::wait_for_client(Listener& listener) {
  listener.async_wait(Listener::wait_read,
                      [weak = weak_from_this()](const boost::system::error_code& error) {
                        const std::shared_ptr<Server> self = weak.lock();
                        if (self && !error && !self->has_failed_ && self->pid_ == 0) self->spawn();
                      });
}

void MpiServers::Server::stop_listening() {
  boost::system::error_code ignored;
  for (Listener* listener : {&listener_, &loopback_})
    if (listener->is_open()) listener->close(ignored);
}

void MpiServers::Server::spawn() {
  DescriptorPair out = make_pipe();
  DescriptorPair err = make_pipe();
  DescriptorPair in = make_pipe();
  pid_t child = -1;
  if (out && err && in)
    child =
        start_server(child_of(in.first.get(), out.second.get(), err.second.get()), &exec_error_);
  if (child < 0) return fail(errno_error(Code::kUnavailable, "start " + name(), errno).message);
  pid_ = child;
  stdin_ = std::move(in.second);
  context_.containment->spare(child);
  events_.open(std::move(out.first), weak_from_this());
  notes_.open(std::move(err.first), weak_from_this());
  // Our copies would keep clients waiting after its exit.
  stop_listening();
}

ServerChild MpiServers::Server::child_of(int in, int out, int err) {
  // The sockets' numbers in the process.
  constexpr int kListenFd = 3;
  constexpr int kLoopbackFd = 4;
  const std::string program =
      protocol_ == MPI_PMIX ? context_.start.program_directory + "/ivy-pmix" : node_program();
  ServerChild child{program, arguments_, {}, context_.is_in_step()};
  child.long_arguments = long_arguments_;
  child.descriptors = {{in, STDIN_FILENO}, {out, STDOUT_FILENO}, {err, STDERR_FILENO}};
  const auto give = [&](const char* flag, Listener& listener, int number) {
    if (!listener.is_open()) return;
    child.arguments.insert(child.arguments.end(), {flag, std::to_string(number)});
    child.descriptors.emplace_back(listener.native_handle(), number);
  };
  give("--listen-fd", listener_, kListenFd);
  give("--loopback-fd", loopback_, kLoopbackFd);
  return child;
}

void MpiServers::Server::ended(int wait_status) {
  pid_ = 0;
  drain();
  notes_.read_some();
  if (!has_failed_) fail(server_end(name(), wait_status, exec_error_));
}

void MpiServers::Server::fail(const std::string& why) {
  has_failed_ = true;
  owner_.fail(why);
}

MpiServers::MpiServers(SupervisorContext& context, HostWorkers& workers)
    : context_(context), workers_(workers) {}

MpiServers::~MpiServers() = default;

void MpiServers::begin(HostPlan& plan) {
  servers_.clear();
  generation_ = plan.generation();
  has_failed_ = false;
  ranks_.begin(plan.mpi().required());
  if (!plan.has_mpi() || plan.workers_size() == 0) return;
  segments_ = mpich_segments(pmi_name(context_.start.job_id, generation_), index_of(plan));
  MpiIdentity identity;
  identity.pmi_port = listen(plan, MPI_PMI1);
  identity.pmix_port = listen(plan, MPI_PMIX);
  if (identity.pmi_port != 0 && identity.pmix_port != 0) add_variables(plan, std::move(identity));
}

void MpiServers::end() {
  servers_.clear();
  for (const std::string& segment : segments_) shm_unlink(segment.c_str());
  segments_.clear();
}

void MpiServers::add_variables(HostPlan& plan, MpiIdentity identity) const {
  identity.size = plan.world_size();
  identity.local_size = static_cast<std::uint32_t>(plan.workers_size());
  identity.host = index_of(plan);
  identity.host_name = plan.hosts(static_cast<int>(identity.host)).name();
  identity.pmix_namespace = pmix_name(plan, context_.start);
  identity.directory = context_.start.directory.pmix_directory(plan.generation());
  for (WorkerSpec& worker : *plan.mutable_workers()) {
    identity.rank = worker.rank();
    identity.local_rank = worker.local_rank();
    for (EnvVariable& variable : mpi_identity_variables(identity))
      set_variable(*worker.mutable_environment(), std::move(variable));
  }
  const MpiSettings settings{
      .job_id = context_.start.job_id,
      .segment_directory = pmix_segments_parent("/dev/shm", geteuid()) + "/" +
                           std::string(kPmixSegments) + context_.start.job_id + "-" +
                           std::to_string(identity.host) + "-" + std::to_string(plan.generation()),
      .is_oversubscribed = is_oversubscribed(plan)};
  for (EnvVariable& variable : mpi_settings(settings))
    if (!is_set_by_user(plan, variable.name))
      set_variable(*plan.mutable_environment(), std::move(variable));
}

std::uint16_t MpiServers::listen(const HostPlan& plan, MpiProtocol protocol) {
  const auto server = std::make_shared<Server>(context_, *this, protocol);
  const Result<void> listening = server->listen(plan, has_pmix_);
  if (!listening.ok()) {
    note("MPI: " + listening.error().message);
    return 0;
  }
  servers_.push_back(server);
  return server->port();
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
    context_.events.send(event);
    unread_.push_back(event.mpi_joined());
  }
  read_libraries();
  tick(monotonic_ns());
}

// Reports each rank again with its library, because the launcher compares the libraries of all
// ranks. The comparison is skipped if a file system never responds.
void MpiServers::read_libraries() {
  if (unread_.empty() || std::exchange(is_reading_, true)) return;
  std::vector<pid_t> workers;
  for (const MpiJoined& joined : unread_) workers.push_back(workers_.process_of(joined.rank()));
  context_.blocking.run(
      "the file system of the MPI library", kLibraryTimeout,
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
          context_.events.send(event);
        }
        read_libraries();
      });
}

// Only the first reason of a generation counts.
void MpiServers::fail(const std::string& why) {
  if (std::exchange(has_failed_, true)) return;
  Event event;
  event.mutable_mpi_lost()->set_why(why);
  context_.events.send(event);
}

void MpiServers::note(const std::string& text) {
  Event event;
  event.mutable_note()->set_text(text);
  event.mutable_note()->set_warning(true);
  context_.events.send(event);
}

// A server writes a rank's event before it answers the rank, so all relevant events have been
// written by the time the rank exits.
MpiEnd MpiServers::classify(std::uint32_t rank, const ExitStatus& status) {
  if (servers_.empty()) return {};
  for (const std::shared_ptr<Server>& server : servers_) server->drain();
  return ranks_.classify(rank, status);
}

void MpiServers::tick(std::uint64_t now_ns) {
  for (const std::uint32_t rank : ranks_.overdue(now_ns)) workers_.kill(rank);
}

void MpiServers::reaped(pid_t pid, int wait_status) {
  for (const std::shared_ptr<Server>& server : servers_)
    if (server->pid() == pid) return server->ended(wait_status);
}

}  // namespace ivy
