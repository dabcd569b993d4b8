// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/agent_admin.h"

#include <grpcpp/create_channel.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/src.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <thread>

#include "agent/daemon/net/agent_log.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/trust/agent_certificate.h"
#include "proto/trust/agent_config.h"

namespace ivy {
namespace {

namespace v1 = agent::v1;
using Stub = v1::Agent::Stub;

constexpr auto kAnswerTime = std::chrono::seconds(5);
constexpr auto kPollInterval = std::chrono::milliseconds(500);

std::string account_name() {
  const passwd* const entry = getpwuid(geteuid());
  return entry == nullptr ? std::string() : entry->pw_name;
}

// An agent of this host.
struct LocalAgent {
  std::string socket;
  std::unique_ptr<Stub> stub;
};

// Returns the socket that was given, or else the first default path that has a socket.
Result<std::string> find_socket(const std::string& given, const Environment& environment) {
  if (!given.empty()) return given;
  std::string searched;
  for (const std::string& path : agent_socket_paths(environment, account_name(), geteuid())) {
    if (access(path.c_str(), F_OK) == 0) return path;
    searched += (searched.empty() ? "" : ", ") + path;
  }
  return Error{Code::kNotFound,
               "no agent of this user runs on this host: there is no socket at " + searched,
               "start one with `ivy-agent serve`, or give the path of its socket with --socket"};
}

Result<LocalAgent> connect(const std::string& given, const Environment& environment) {
  const std::string socket = IVY_TRY(find_socket(given, environment));
  return LocalAgent{socket, calls_over_unix(socket)};
}

Result<void> answer_of(const grpc::Status& status, const std::string& socket) {
  if (status.ok()) return {};
  if (status.error_message().find("Connection refused") != std::string::npos)
    return Error{
        Code::kUnavailable, "the agent at " + socket + " is not running",
        "start it: `systemctl start ivy-agent@" + account_name() + "`, or `ivy-agent serve`"};
  const std::string fix =
      status.error_code() == grpc::StatusCode::UNAVAILABLE
          ? "check that it is running: `systemctl status ivy-agent@" + account_name() + "`"
          : "";
  return Error{static_cast<Code>(status.error_code()),
               "agent at " + socket + ": " + status.error_message(), fix};
}

template <class Request, class Reply>
Result<Reply> call_agent(const LocalAgent& agent,
                         grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Reply*),
                         const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(system_now() + kAnswerTime);
  Reply reply;
  IVY_CHECK(answer_of((*agent.stub.*call)(&context, request, &reply), agent.socket));
  return reply;
}

Result<v1::ListReply> list_jobs(const LocalAgent& agent) {
  return call_agent(agent, &Stub::List, v1::ListRequest());
}

// Waits until no job is left or the timeout expires; returns the number of jobs left.
Result<std::uint64_t> wait_until_empty(const LocalAgent& agent, std::chrono::seconds timeout) {
  const auto end = steady_now() + timeout;
  while (true) {
    const v1::ListReply reply = IVY_TRY(list_jobs(agent));
    const auto left = static_cast<std::uint64_t>(reply.jobs_size());
    if (left == 0 || steady_now() >= end) return left;
    std::this_thread::sleep_for(kPollInterval);
  }
}

Result<int> drain(const DrainCommand& command, const Environment& environment) {
  const LocalAgent agent = IVY_TRY(connect(command.socket_path, environment));
  v1::DrainRequest request;
  request.set_undo(command.undo);
  request.set_stop_jobs(command.stop_jobs);
  const v1::DrainReply reply = IVY_TRY(call_agent(agent, &Stub::Drain, request));
  const std::string here = counted(reply.jobs(), "job") + " running";
  if (command.undo) {
    std::printf("accepting new jobs again; %s\n", here.c_str());
    return 0;
  }
  std::printf("draining: no new jobs; %s%s\n", here.c_str(),
              command.stop_jobs && reply.jobs() > 0 ? ", being stopped" : "");
  if (command.wait.count() == 0) return 0;
  std::fflush(stdout);
  const std::uint64_t left = IVY_TRY(wait_until_empty(agent, command.wait));
  if (left == 0) {
    std::printf("all jobs have exited\n");
    return 0;
  }
  std::printf("%s still running after %lld s\n",
              (counted(left, "job") + (left == 1 ? " is" : " are")).c_str(),
              static_cast<long long>(command.wait.count()));
  return kExitFailed;
}

std::string age(std::int64_t since_unix_s) {
  const std::int64_t seconds = std::max<std::int64_t>(0, std::time(nullptr) - since_unix_s);
  if (seconds < 120) return std::to_string(seconds) + " s";
  if (seconds < 7200) return std::to_string(seconds / 60) + " min";
  if (seconds < 2 * 86'400) return std::to_string(seconds / 3600) + " h";
  return std::to_string(seconds / 86'400) + " days";
}

// Values from peers may hold any byte, so they are escaped before they reach a terminal.
void print_field(const char* name, const std::string& value) {
  std::printf("%-12s %s\n", name, agent_log::escaped(value).c_str());
}

void print_job(const v1::JobEntry& job) {
  const v1::JobDescription& described = job.job();
  std::printf(
      "  %s host %u  %s  %s  %s  %s  by %s@%s, %s\n", agent_log::escaped(job.job_id()).c_str(),
      job.host(), age(job.opened_at()).c_str(), job.attached() ? "attached" : "no launcher",
      (std::to_string(described.host_count()) + " hosts").c_str(),
      agent_log::escaped(described.program()).c_str(), agent_log::escaped(described.user()).c_str(),
      agent_log::escaped(described.launcher_host()).c_str(),
      agent_log::escaped(job.certificate()).c_str());
}

// Values from peers may not be UTF-8: JSON then has their bytes as \\xNN.
boost::json::string json_string(const std::string& text) {
  return boost::json::string(agent_log::escaped(text));
}

void print_json(const v1::FactsReply& facts, const v1::ListReply& list, const std::string& socket) {
  boost::json::array jobs;
  for (const v1::JobEntry& job : list.jobs())
    jobs.push_back({{"job", json_string(job.job_id())},
                    {"host_number", job.host()},
                    {"since_unix_ms", job.opened_at() * 1000},
                    {"attached", job.attached()},
                    {"host_count", job.job().host_count()},
                    {"program", json_string(job.job().program())},
                    {"user", json_string(job.job().user())},
                    {"launcher_host", json_string(job.job().launcher_host())},
                    {"certificate", json_string(job.certificate())}});
  const std::int64_t expires = facts.certificate_expires_at();
  const boost::json::object status{
      {"version", json_string(facts.version())},
      {"protocol", facts.protocol()},
      {"since_unix_ms", facts.started_at() * 1000},
      {"host", json_string(facts.host_name())},
      {"architecture", json_string(facts.architecture())},
      {"user", json_string(facts.user())},
      {"socket", json_string(socket)},
      {"certificate_expires_unix_ms",
       expires == 0 ? boost::json::value(nullptr) : boost::json::value(expires * 1000)},
      {"containment", json_string(facts.containment())},
      {"draining", facts.draining()},
      {"jobs", jobs}};
  std::printf("%s\n", boost::json::serialize(status).c_str());
}

Result<int> status_of(const StatusCommand& command, const Environment& environment) {
  const LocalAgent agent = IVY_TRY(connect(command.socket_path, environment));
  const v1::FactsReply facts = IVY_TRY(call_agent(agent, &Stub::Facts, v1::FactsRequest()));
  const v1::ListReply list = IVY_TRY(list_jobs(agent));
  if (command.json) {
    print_json(facts, list, agent.socket);
    return 0;
  }
  print_field("agent", facts.version() + ", protocol " + std::to_string(facts.protocol()) +
                           ", up for " + age(facts.started_at()));
  print_field("host", facts.host_name() + " (" + facts.architecture() + ")");
  print_field("user", facts.user());
  print_field("socket", agent.socket);
  const std::int64_t expires = facts.certificate_expires_at();
  const std::string warning = expires == 0 ? "" : expiry_warning(expires, std::time(nullptr));
  print_field("certificate", expires == 0      ? "none: only launchers of this host are served"
                             : warning.empty() ? "until " + certificate_date(expires)
                                               : warning);
  print_field("containment", facts.containment());
  print_field("accepts jobs", facts.draining() ? "no (draining)" : "yes");
  print_field("jobs", std::to_string(list.jobs_size()));
  for (const v1::JobEntry& job : list.jobs()) print_job(job);
  return 0;
}

int finish(const Result<int>& result) {
  if (result.ok()) return *result;
  print_error(result.error());
  return kExitFailed;
}

}  // namespace

std::unique_ptr<Stub> calls_over_unix(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return v1::Agent::NewStub(
      grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
}

int print_error(const Error& error) {
  const std::string fix =
      error.fix.empty() ? "" : "  fix:   " + agent_log::escaped(error.fix) + "\n";
  std::fprintf(stderr, "ivy-agent: error: %s\n%s", agent_log::escaped(error.message).c_str(),
               fix.c_str());
  return error.code == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

int run_drain(const DrainCommand& command, const Environment& environment) {
  return finish(drain(command, environment));
}

int run_status(const StatusCommand& command, const Environment& environment) {
  return finish(status_of(command, environment));
}

}  // namespace ivy
