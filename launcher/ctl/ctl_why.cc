// ivyctl why: asks the launcher what the ranks do in the comm runtime or in torch's collectives,
// where they are and where the job's store is, and the store for its wait graph.
#include <chrono>
#include <optional>
#include <utility>

#include "launcher/ctl/ctl_connection.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "launcher/hang/rank_names.h"
#include "proto/contract/remote_text.h"
#include "rendezvous/client/client.h"

namespace ivy {
namespace {

using std::chrono::milliseconds;

// Together five seconds. A store that lives answers at once, also one that is started because it is
// asked: its process is born with its first client.
constexpr milliseconds kConnectLimit{3'000};
constexpr milliseconds kAnswerLimit{2'000};
// torch looks once per second whether a record is asked for.
constexpr milliseconds kFlightLimit{4'000};

Result<std::string> ask_store(const ctl::StoreDescription& store) {
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

// Empty: no rank uses the comm runtime, or the launcher is an older one and knows nothing of it.
Result<std::string> ask_operations(const FoundJob& job) {
  ctl::Request request;
  request.mutable_describe_operations();
  return IVY_TRY(ask_once(job.place, request)).operations().text();
}

Result<std::string> explain_store(const FoundJob& job) {
  ctl::Request request;
  request.mutable_describe_store();
  const ctl::Reply reply = IVY_TRY(ask_once(job.place, request));
  if (!reply.has_store())
    return Error{Code::kFailedPrecondition, "this job's ivyrun does not know where its store is",
                 "use the ivyctl beside that ivyrun"};
  const std::string answer = IVY_TRY(ask_store(reply.store()));
  std::string text = explain_ranks(answer, reply.store());
  if (reply.store().no_python_hook() && answer.find("no clients connected") != std::string::npos)
    text +=
        "\na script that sets MASTER_PORT itself has no server with --no-python-hook: start it "
        "with --no-store too";
  return text;
}

// Without debuggers. Empty: nothing is known.
Result<std::string> ask_stacks(const FoundJob& job, bool is_brief) {
  ctl::Request request;
  ctl::DescribeStacks& question = *request.mutable_describe_stacks();
  question.set_patience_ms(kFlightLimit.count());
  // Brief: the ranks that torch's collectives wait for, by their flight records or stacks.
  question.set_brief(is_brief);
  question.set_main_threads(!is_brief);
  return IVY_TRY(ask_once(job.place, request, 2 * kFlightLimit)).stacks().text();
}

void add_part(std::string& text, const Result<std::string>& part) {
  if (part.ok() && !part->empty()) text += (text.empty() ? "" : "\n") + *part;
}

// Ranks that ended while the job went on (--on-failure).
void add_losses(std::string& text, const FoundJob& job) {
  const Result<ctl::JobDescription> described = describe_job(job.place);
  if (!described.ok() || described->losses_size() == 0) return;
  std::string lines = "ranks that ended while the job went on:";
  for (const std::string& line : described->losses()) lines += "\n  " + escape_control(line);
  add_part(text, lines);
}

// What is likely to be the cause comes first: operations, then the store, then where all ranks are.
Result<std::string> explain_job(const CtlOptions& options) {
  const FoundJob job = IVY_TRY(choose_living_job(options.job));
  std::string text;
  add_part(text, ask_operations(job));
  const bool has_operations = !text.empty();
  const Result<std::string> absent = ask_stacks(job, /*is_brief=*/true);
  add_part(text, absent);
  const bool has_collective = absent.ok() && !absent->empty();
  // Operations say where their ranks are; of other programs nothing else is known.
  const Result<std::string> places =
      has_collective || !has_operations ? ask_stacks(job, /*is_brief=*/false) : std::string();
  const bool has_places = places.ok() && !places->empty();
  const Result<std::string> store = explain_store(job);
  if (text.empty() && !has_places) return store;
  // What the ranks do is an answer, also where there is no store or it is lost.
  const std::string fix = store.ok() || store.error().fix.empty() ? "" : "; " + store.error().fix;
  add_part(text, store.ok() ? *store : "(" + store.error().message + fix + ")");
  add_losses(text, job);
  if (has_places)
    add_part(text, "where the ranks are (ivyctl stack shows all threads):\n" + indented(*places));
  return text;
}

// Empty: no such job is remembered.
std::string explain_ended(const std::string& prefix) {
  const std::optional<EndedJob> ended = find_ended_job(prefix);
  if (!ended) return {};
  std::string text = ended_text(*ended);
  ctl::JobDescription job;
  if (job.ParseFromString(ended->description) && !job.log_directory().empty())
    text += "\nits output is in " + job.log_directory() + " (ivyctl logs " +
            short_id(ended->job_id) + " shows it)";
  return text;
}

}  // namespace

int ctl_why(const CtlOptions& options) {
  Result<std::string> text = explain_job(options);
  if (!text.ok())
    if (std::string ended = explain_ended(options.job); !ended.empty()) text = std::move(ended);
  return ctl_print(text);
}

}  // namespace ivy
