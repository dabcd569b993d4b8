// SPDX-License-Identifier: Apache-2.0
// ivyctl why: queries the launcher for the ranks' operations in the comm runtime or in torch's
// collectives, their positions and the address of the job's store, and queries the store for its
// wait graph.

#include <algorithm>
#include <chrono>
#include <optional>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_job_rows.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/hang/rank_names.h"
#include "launcher/screen/json_text.h"
#include "proto/contract/remote_text.h"
#include "rendezvous/client/client.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Limits for the store. A running store answers immediately, and so does one whose process is
// started by this first client.
constexpr milliseconds kConnectLimit{3'000};
constexpr milliseconds kAnswerLimit{2'000};
// torch checks once per second whether a record is requested.
constexpr milliseconds kFlightLimit{4'000};

Result<std::string> explain_description(const ctl::StoreDescription& store) {
  store::ClientOptions options;
  options.address = store.address();
  options.job_id = store.job_id();
  options.token = store.token();
  options.generation = store.generation();
  options.connect_timeout = kConnectLimit;
  options.request_timeout = kAnswerLimit;
  Result<std::unique_ptr<store::Client>> client = store::Client::connect(options);
  if (!client.ok()) return client.error().context("the job's store at " + store.address());
  Result<std::string> answer = (*client)->why();
  if (!answer.ok()) return answer.error().context("the job's store at " + store.address());
  return answer;
}

// Returns an empty text if no rank uses the comm runtime, or if the launcher is too old to know
// this request.
Result<std::string> request_operations(const FoundJob& job) {
  ctl::Request request;
  request.mutable_describe_operations();
  return IVY_TRY(request_reply(job.directory, request)).operations().text();
}

Result<std::string> explain_store(const FoundJob& job) {
  ctl::Request request;
  request.mutable_describe_store();
  const ctl::Reply reply = IVY_TRY(request_reply(job.directory, request));
  if (!reply.has_store())
    return Error{Code::kFailedPrecondition, "this job's ivyrun cannot report where its store is",
                 "use the ivyctl that was installed with that ivyrun"};
  const std::string answer = IVY_TRY(explain_description(reply.store()));
  std::string text = explain_ranks(answer, reply.store());
  if (reply.store().no_python_hook() && answer.find("no clients connected") != std::string::npos)
    text +=
        "\nwith --no-python-hook, a script that sets MASTER_PORT itself has no store server: start "
        "it with --no-store too";
  return text;
}

// Queries the stacks without debuggers. Returns an empty text if nothing is known.
Result<std::string> request_stacks(const FoundJob& job, bool is_brief) {
  ctl::Request request;
  ctl::DescribeStacks& question = *request.mutable_describe_stacks();
  question.set_patience_ms(kFlightLimit.count());
  // Brief: only the ranks that torch's collectives wait for, from their flight records or stacks.
  question.set_brief(is_brief);
  question.set_main_threads(!is_brief);
  return IVY_TRY(request_reply(job.directory, request, 2 * kFlightLimit)).stacks().text();
}

// The findings about a job that hangs, the likely cause first; each may be empty.
struct HangParts {
  std::string job_id;
  std::string operations;   // The ranks' operations in the comm runtime.
  std::string collectives;  // The ranks that torch's collectives wait for.
  std::string store;        // The waits in the job's store, or the reason why they are unknown.
  bool knows_store = false;
  Error store_error;
  ctl::JobDescription description;  // Empty if it is unknown.
  std::string stacks;
};

Result<HangParts> request_hang_parts(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_running_job(options.job));
  HangParts parts;
  parts.job_id = job.directory.job_id;
  const auto text_of = [](const Result<std::string>& part) { return part.ok() ? *part : ""; };
  parts.operations = text_of(request_operations(job));
  parts.collectives = text_of(request_stacks(job, /*is_brief=*/true));
  // The ranks' operations already show where ranks are; other programs, and torch's collectives,
  // need the stacks.
  if (!parts.collectives.empty() || parts.operations.empty())
    parts.stacks = text_of(request_stacks(job, /*is_brief=*/false));
  const Result<std::string> store = explain_store(job);
  parts.knows_store = store.ok();
  if (!store.ok()) parts.store_error = store.error();
  // The ranks' operations are an answer even if the store does not exist or is unreachable.
  const std::string fix = parts.store_error.fix.empty() ? "" : "; " + parts.store_error.fix;
  parts.store = store.ok() ? *store : "(" + parts.store_error.message + fix + ")";
  const Result<ctl::JobDescription> described = describe_job(job.directory);
  if (described.ok()) parts.description = *described;
  return parts;
}

Result<std::string> hang_text(const HangParts& parts) {
  const bool is_empty =
      parts.operations.empty() && parts.collectives.empty() && parts.stacks.empty();
  if (is_empty && !parts.knows_store) return parts.store_error;
  if (is_empty) return parts.store;
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : "\n") + part;
  };
  add(parts.operations);
  add(parts.collectives);
  add(parts.store);
  if (!parts.description.losses().empty()) add("ranks that exited while the job continued:");
  for (const std::string& line : parts.description.losses()) add("  " + escape_control(line));
  if (!parts.stacks.empty())
    add("where the ranks are (ivyctl stack shows all threads):\n" + indented(parts.stacks));
  add(other_machines(parts.description));
  return text;
}

std::string hang_json(const HangParts& parts) {
  return json_line(boost::json::object{{"schema", kMachineSchema},
                                       {"job", parts.job_id},
                                       {"operations", json_text(parts.operations)},
                                       {"collectives", json_text(parts.collectives)},
                                       {"store", json_text(parts.store)},
                                       {"losses", json_list(parts.description.losses())},
                                       {"hosts", json_text(hosts_text(parts.description))},
                                       {"places", json_text(parts.stacks)}});
}

// Returns std::nullopt if no such job is recorded.
std::optional<std::string> explain_ended(const CtlOptions& options) {
  const std::optional<EndedJob> ended = find_ended_job(options.job);
  if (!ended) return std::nullopt;
  ctl::JobDescription job;
  const bool has_logs = job.ParseFromString(ended->description) && !job.log_directory().empty();
  if (options.json)
    return json_line(boost::json::object{{"schema", kMachineSchema},
                                         {"job", ended->job_id},
                                         {"ended", true},
                                         {"exit_code", ended->exit_code},
                                         {"cause", json_text(ended->cause)},
                                         {"log_directory", json_text(job.log_directory())}});
  std::string text = ended_text(*ended);
  if (const std::string machines = other_machines(job); !machines.empty()) text += "\n" + machines;
  if (has_logs)
    text += "\nits output is in " + job.log_directory() + " (ivyctl logs " +
            short_id(ended->job_id) + " shows it)";
  return text;
}

}  // namespace

int ctl_why(const CtlOptions& options) {
  const Result<HangParts> parts = request_hang_parts(options);
  if (parts.ok())
    return ctl_print(options.json ? Result<std::string>(hang_json(*parts)) : hang_text(*parts));
  if (const std::optional<std::string> ended = explain_ended(options)) return ctl_print(*ended);
  return ctl_print(parts.error());
}

}  // namespace ivy
