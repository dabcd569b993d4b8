// SPDX-License-Identifier: Apache-2.0
// The functions are in the order in which a host passes through them (staging.h), with the window
// (pump(), on_progress()) and the texts at the end.
#include "launcher/job/staging.h"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdio>
#include <utility>

#include "launcher/plan/interpreter.h"
#include "launcher/stage/python_environment.h"
#include "launcher/stage/stage_scan.h"
#include "proto/contract/exit_code.h"
#include "proto/contract/host_ranges.h"
#include "proto/contract/log.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::int64_t kStageSecondNs = 1'000'000'000;
constexpr std::chrono::milliseconds kStageTick{500};
// Staging counts as stuck when nothing has moved for this long.
constexpr std::int64_t kStageStuckNs = 60 * kStageSecondNs;
// A host that answers later than the others by this time is not awaited for a chain.
constexpr std::int64_t kChainWaitNs = 3 * kStageSecondNs;
// Limit of the connections between the hosts of a chain; the launcher feeds hosts without one.
constexpr std::int64_t kChainLimitNs = 15 * kStageSecondNs;
// Blocks in transit to one host: what it has taken in the last half second, within these limits.
// HostTaskProcess on the host holds more than the larger one.
constexpr std::size_t kStageMinWindow = 1u << 20;
constexpr std::size_t kStageMaxWindow = 8u << 20;
constexpr std::size_t kBlocksPerTask = 4;
constexpr std::size_t kManifestWindow = 4;  // Parts.
constexpr std::uint64_t kCacheBytes = 20ull << 30;
constexpr std::uint32_t kCacheAge = 30u * 24 * 3600;

std::string framed_order(const StageOrder& order) {
  return stage::framed(order.SerializeAsString());
}

}  // namespace

Staging::Staging(JobContext& job, StagingEvents& owner)
    : job_(job),
      owner_(owner),
      timer_(job.loop),
      pool_([&loop = job.loop](std::function<void()> function) {
        boost::asio::post(loop, std::move(function));
      }) {}

bool Staging::covers(std::size_t index) const {
  return job_.options.stage && job_.takeover == 0 &&
         (!job_.hosts[index].on_this_host || !job_.options.stage_to.empty());
}

void Staging::begin() {
  receivers_.resize(job_.hosts.size());
  bool has_host = false;
  for (std::size_t index = 0; index < job_.hosts.size(); ++index) has_host |= covers(index);
  if (!has_host) return;
  const Options& options = job_.options;
  stage::ScanRequest request;
  request.directory = options.stage_directory;
  request.patterns = options.stage_patterns;
  request.working_directory = options.working_directory;
  // A module's name is no path.
  if (options.program_kind != ProgramKind::kModule && !options.command.empty())
    request.program = options.command.front();
  request.limit = options.stage_limit;
  request.caller = job_.request.caller;
  request.progress = listed_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  is_listing_ = true;
  began_ns_ = moved_ns_ = monotonic_ns();
  pool_.run(
      "the file system of " + options.working_directory, BlockingPool::kNoDeadline,
      [request = std::move(request), options]() mutable {
        if (options.stage_venv == StageVenv::kActive)
          request.interpreters = interpreter_candidates(options, request.caller);
        return stage::scan(request);
      },
      [this](Result<stage::SourceTree> tree) { listed(std::move(tree)); });
}

void Staging::listed(Result<stage::SourceTree> tree) {
  is_listing_ = false;
  moved_ns_ = monotonic_ns();
  if (!is_before_start(job_.phase.state())) return;
  if (!tree.ok()) return reject(tree.error(), "");
  for (const std::string& note : tree->notes) job_.screen.note("note: " + note);
  root_ = tree->root;
  std::string ignored;
  if (!job_.options.uv_project.empty() && !stage::is_below(job_.options.uv_project, root_, ignored))
    return reject(
        Error{Code::kFailedPrecondition,
              job_.options.uv_project + "/uv.lock is not in the staged directory " + root_,
              "stage the project: --stage=" + job_.options.uv_project},
        "");
  imports_ = std::move(tree->imports);
  requirements_ = std::move(tree->requirements);
  has_python_ = tree->shared.size() > 1;
  files_ = stage::count_files(tree->files);
  bytes_ = stage::total_bytes(tree->files);
  auto manifest = std::make_shared<stage::Manifest>(stage::make_manifest(tree->files));
  for (StageShared& shared : tree->shared) *manifest->message.add_shared() = std::move(shared);
  manifest_messages_ = stage::manifest_messages(manifest->message);
  manifest_ = std::move(manifest);
  schedule_tick();
  owner_.files_listed();
  for (std::size_t index = 0; index < receivers_.size(); ++index)
    if (receivers_[index].state == State::kManifest) send_manifest(index);
}

void Staging::host_up(std::size_t index) {
  receivers_[index].state = State::kManifest;
  if (manifest_) send_manifest(index);
}

void Staging::send(std::size_t index, const std::string& framed_order) {
  Command command;
  command.mutable_task_input()->set_task(TASK_STAGE);
  command.mutable_task_input()->set_bytes(framed_order);
  job_.hosts.send(index, command);
}

void Staging::send_manifest(std::size_t index) {
  Receiver& receiver = receivers_[index];
  if (receiver.manifest_sent == 0) {
    StageOrder order;
    StageBegin& begin = *order.mutable_begin();
    begin.set_directory(job_.options.stage_to);
    begin.set_name(stage::tree_name(root_, job_.request.identity.job_id) +
                   (job_.hosts.size() > 1 ? "-" + std::to_string(index) : ""));
    begin.set_job_id(job_.request.identity.job_id);
    begin.set_token(job_.request.identity.token);
    begin.set_host(static_cast<std::uint32_t>(index));
    begin.set_interface(job_.options.interface);
    begin.set_port_low(job_.options.port_low);
    begin.set_port_high(job_.options.port_high);
    begin.set_max_bytes(kCacheBytes);
    begin.set_max_age_s(kCacheAge);
    add_environment(begin);
    send(index, framed_order(order));
  }
  while (receiver.manifest_sent < manifest_messages_.size() &&
         receiver.manifest_sent < receiver.manifest_taken + kManifestWindow)
    send(index, manifest_messages_[receiver.manifest_sent++]);
}

void Staging::take_output(std::size_t index, const TaskOutput& output) {
  Receiver& receiver = receivers_[index];
  if (receiver.state == State::kFailed || receiver.state == State::kAbsent) return;
  receiver.messages.feed(output.bytes());
  while (receiver.state != State::kFailed) {
    const Result<std::optional<std::string>> message = receiver.messages.next();
    StageReply reply;
    if (!message.ok() || (*message && !reply.ParseFromString(**message)))
      return fail(index, "it sent an invalid message", "");
    if (!*message) break;
    take_reply(index, reply);
  }
  if (output.ended() && receiver.state != State::kFailed && receiver.state != State::kReady)
    fail(index, RemoteText(output.why()), "");
}

void Staging::take_reply(std::size_t index, const StageReply& reply) {
  moved_ns_ = monotonic_ns();
  switch (reply.kind_case()) {
    case StageReply::kMissing:
      return on_missing(index, reply.missing());
    case StageReply::kListening:
      return on_listening(index, reply.listening());
    case StageReply::kFeeding:
      return on_feeding(index);
    case StageReply::kUnfed:
      return on_unfed(index, reply.unfed());
    case StageReply::kProgress:
      return on_progress(index, reply.progress().next_block());
    case StageReply::kPreparing:
      receivers_[index].preparing = RemoteText(reply.preparing().what()).line();
      return;
    case StageReply::kReady:
      return on_ready(index, reply.ready());
    case StageReply::kFailed:
      return on_failed(index, reply.failed());
    case StageReply::KIND_NOT_SET:
      return;
  }
}

// -- Chains

void Staging::on_missing(std::size_t index, const StageMissing& missing) {
  Receiver& receiver = receivers_[index];
  if (receiver.state != State::kManifest) return;
  for (const StagePiece& piece : missing.pieces())
    if (piece.object() >= manifest_->sources.size())
      return fail(index, "it sent an invalid message", "");
  receiver.state = State::kAnswered;
  receiver.missing = missing;
  if (first_missing_ns_ == 0) first_missing_ns_ = monotonic_ns();
  check_chains();
}

// Starts chains of the hosts that have answered, unless others are still expected to.
void Staging::check_chains() {
  if (first_missing_ns_ == 0) return;
  const bool is_late = monotonic_ns() - first_missing_ns_ > kChainWaitNs;
  for (std::size_t index = 0; index < receivers_.size() && !is_late; ++index) {
    const State state = receivers_[index].state;
    const bool is_expected = covers(index) && !job_.hosts[index].failure &&
                             !job_.hosts[index].excluded &&
                             (state == State::kAbsent || state == State::kManifest);
    if (is_expected) return;
  }
  start_chains();
}

void Staging::start_chains() {
  first_missing_ns_ = 0;
  // The objects that a host lacks, without how much of them it has.
  std::map<std::vector<std::uint32_t>, std::vector<std::size_t>> groups;
  for (std::size_t index = 0; index < receivers_.size(); ++index) {
    if (receivers_[index].state != State::kAnswered) continue;
    std::vector<std::uint32_t> objects;
    for (const StagePiece& piece : receivers_[index].missing.pieces())
      objects.push_back(piece.object());
    groups[objects].push_back(index);
  }
  for (auto& [objects, hosts] : groups) start_chain(std::move(hosts));
}

void Staging::start_chain(std::vector<std::size_t> hosts) {
  std::vector<stage::Piece> pieces;
  StageOrder order;
  StageReceive& receive = *order.mutable_receive();
  for (const StagePiece& piece : receivers_[hosts.front()].missing.pieces())
    pieces.push_back({piece.object(), piece.from(), manifest_->sources[piece.object()].size});
  // A host that has more of an object than another one writes that part again.
  for (const std::size_t index : hosts)
    for (std::size_t i = 0; i < pieces.size(); ++i)
      pieces[i].from = std::min<std::uint64_t>(
          pieces[i].from, receivers_[index].missing.pieces(static_cast<int>(i)).from());
  for (const stage::Piece& piece : pieces) {
    StagePiece& sent = *receive.add_pieces();
    sent.set_object(piece.object);
    sent.set_from(piece.from);
  }
  const auto chain = std::make_shared<Chain>();
  chain->blocks = stage::BlockMap(std::move(pieces));
  chain->hosts = std::move(hosts);
  chain->deadline_ns = monotonic_ns() + kChainLimitNs;
  const bool is_fanned_out = chain->hosts.size() > 1 && chain->blocks.blocks() > 0;
  chain->awaited = is_fanned_out ? chain->hosts.size() - 1 : 0;
  sent_bytes_ += chain->blocks.total_bytes();
  for (const std::size_t index : chain->hosts) {
    Receiver& receiver = receivers_[index];
    receiver.state = State::kReceiving;
    receiver.chain = chain;
    receiver.missing.Clear();
    receiver.awaits_predecessor = is_fanned_out && index != chain->hosts.front();
    receive.set_listens(is_fanned_out && index != chain->hosts.back());
    send(index, framed_order(order));
  }
  if (chain->awaited == 0) feed_chain(chain);
}

void Staging::on_listening(std::size_t index, const StageListening& listening) {
  const Receiver& receiver = receivers_[index];
  if (!receiver.chain) return;
  const std::vector<std::size_t>& hosts = receiver.chain->hosts;
  const auto at = std::find(hosts.begin(), hosts.end(), index);
  if (at == hosts.end() || at + 1 == hosts.end()) return;
  const std::size_t next = *(at + 1);
  if (listening.port() == 0) return on_unfed(next, StageUnfed());
  StageOrder order;
  StageFeedFrom& from = *order.mutable_feed_from();
  *from.mutable_addresses() = listening.addresses();
  from.set_port(listening.port());
  from.set_host(static_cast<std::uint32_t>(index));
  send(next, framed_order(order));
}

void Staging::on_feeding(std::size_t index) {
  Receiver& receiver = receivers_[index];
  if (!receiver.chain || !std::exchange(receiver.awaits_predecessor, false)) return;
  if (--receiver.chain->awaited == 0) feed_chain(receiver.chain);
}

void Staging::on_unfed(std::size_t index, const StageUnfed& unfed) {
  Receiver& receiver = receivers_[index];
  if (!receiver.chain || receiver.state != State::kReceiving) return;
  log::debug(job_.hosts[index].name() +
             ": staged files come from the launcher: " + RemoteText(unfed.why()).line());
  const bool was_awaited = std::exchange(receiver.awaits_predecessor, false);
  if (!receiver.feed) receiver.feed.emplace();
  receiver.feed->next = receiver.feed->acknowledged = unfed.next_block();
  receiver.feed->transit.clear();
  receiver.feed->transit_bytes = 0;
  if (was_awaited && --receiver.chain->awaited == 0) return feed_chain(receiver.chain);
  if (receiver.chain->has_started) pump(index);
}

void Staging::feed_chain(const std::shared_ptr<Chain>& chain) {
  if (std::exchange(chain->has_started, true)) return;
  Receiver& first = receivers_[chain->hosts.front()];
  if (!first.feed) first.feed.emplace();
  for (const std::size_t index : std::vector<std::size_t>(chain->hosts))
    if (receivers_[index].feed) pump(index);
}

// -- Blocks for hosts that the launcher feeds

// Reads the next blocks, if the window has room for them.
void Staging::pump(std::size_t index) {
  Receiver& receiver = receivers_[index];
  if (!receiver.feed || receiver.state != State::kReceiving || is_over_) return;
  Feed& feed = *receiver.feed;
  if (feed.window == 0) feed.window = kStageMinWindow;
  const stage::BlockMap& blocks = receiver.chain->blocks;
  if (feed.is_reading || feed.next >= blocks.blocks() || feed.transit_bytes >= feed.window) return;
  feed.is_reading = true;
  const std::uint64_t first = feed.next;
  pool_.run(
      "the file system of " + root_, BlockingPool::kNoDeadline,
      [manifest = manifest_, chain = receiver.chain, first] {
        return stage::read_blocks(manifest->sources, chain->blocks, first, kBlocksPerTask);
      },
      [this, index, first](Result<std::vector<std::string>> messages) {
        Receiver& receiver = receivers_[index];
        if (!receiver.feed) return;
        Feed& feed = *receiver.feed;
        feed.is_reading = false;
        if (!messages.ok()) return reject(messages.error(), job_.hosts[index].name());
        // Otherwise another part of the sequence was requested meanwhile.
        if (feed.next == first && receiver.state == State::kReceiving)
          for (const std::string& message : *messages) {
            feed.transit.push_back(message.size());
            feed.transit_bytes += message.size();
            ++feed.next;
            send(index, message);
          }
        pump(index);
      });
}

void Staging::on_progress(std::size_t index, std::uint64_t next_block) {
  Receiver& receiver = receivers_[index];
  if (receiver.state == State::kManifest) {
    receiver.manifest_taken = static_cast<std::size_t>(next_block);
    return send_manifest(index);
  }
  receiver.taken = std::max(receiver.taken, next_block);
  if (!receiver.feed) return;
  Feed& feed = *receiver.feed;
  std::size_t taken_bytes = 0;
  while (feed.acknowledged < next_block && !feed.transit.empty()) {
    taken_bytes += feed.transit.front();
    feed.transit.pop_front();
    ++feed.acknowledged;
  }
  feed.transit_bytes -= std::min(feed.transit_bytes, taken_bytes);
  const std::int64_t now = monotonic_ns();
  const std::int64_t passed = now - std::exchange(feed.acknowledged_ns, now);
  // While acknowledgements arrive quickly, the path carries more than is in transit.
  if (taken_bytes > 0 && passed < kStageSecondNs / 20)
    feed.window = std::min(feed.window + taken_bytes, kStageMaxWindow);
  else if (passed > kStageSecondNs / 2)
    feed.window = std::max(feed.window / 2, kStageMinWindow / 2);
  pump(index);
}

// -- The end

void Staging::on_ready(std::size_t index, const StageReady& ready) {
  Receiver& receiver = receivers_[index];
  if (receiver.state != State::kReceiving) return;
  receiver.state = State::kReady;
  receiver.taken = receiver.chain->blocks.blocks();
  receiver.feed.reset();
  receiver.directory = ready.directory();
  receiver.environment = ready.environment();
  print_summary();
  owner_.host_staged(index);
}

void Staging::on_failed(std::size_t index, const StageFailed& failed) {
  if (failed.has_changed_object() && failed.changed_object() < manifest_->sources.size()) {
    const stage::SourceFile& file = manifest_->sources[failed.changed_object()];
    return reject(Error{Code::kFailedPrecondition, file.file + " changed while it was staged",
                        "wait until nothing writes to it, or leave it out: "
                        "--stage='DIR:!PATTERN'"},
                  job_.hosts[index].name());
  }
  fail(index, RemoteText(failed.what()), RemoteText(failed.fix()).lines(),
       failed.is_about_environment() ? LinkFailure::kEnvironment : LinkFailure::kStaging);
}

void Staging::fail(std::size_t index, const RemoteText& message, const std::string& fix,
                   LinkFailure failure) {
  forget(index);
  owner_.host_not_staged(index, LinkDown{failure, message, fix});
}

// The host after it gets its blocks from the launcher when it notices the end of the connection.
void Staging::forget(std::size_t index) {
  if (index >= receivers_.size()) return;
  Receiver& receiver = receivers_[index];
  receiver.feed.reset();
  receiver.state = State::kFailed;
  if (receiver.chain && std::exchange(receiver.awaits_predecessor, false) &&
      --receiver.chain->awaited == 0)
    feed_chain(receiver.chain);
  check_chains();
}

void Staging::reject(const Error& error, const std::string& host) {
  if (std::exchange(is_over_, true)) return;
  Diagnostic diagnostic;
  diagnostic.id = "IVY-P040";
  diagnostic.what = "the files of --stage cannot be used";
  diagnostic.where = host.empty() ? "this machine" : "this machine, sending to " + host;
  diagnostic.cause = error.message;
  diagnostic.fix = error.fix;
  diagnostic.exit_code = kExitRejected;
  job_.reject({std::move(diagnostic)}, LauncherReason::kRejected);
}

void Staging::schedule_tick() {
  timer_.expires_after(kStageTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || !is_before_start(job_.phase.state())) return;
    tick();
    schedule_tick();
  });
}

// Starts chains without hosts that are late.
void Staging::tick() {
  check_chains();
  const std::int64_t now = monotonic_ns();
  for (std::size_t index = 0; index < receivers_.size(); ++index) {
    const Receiver& receiver = receivers_[index];
    if (receiver.awaits_predecessor && receiver.state == State::kReceiving &&
        now > receiver.chain->deadline_ns)
      on_unfed(index, StageUnfed());
  }
}

// -- Texts

bool Staging::is_staging(std::size_t index) const {
  const State state = receivers_[index].state;
  return covers(index) && state != State::kReady && state != State::kFailed;
}

void Staging::print_summary() {
  std::size_t hosts = 0;
  for (std::size_t index = 0; index < receivers_.size(); ++index) {
    if (is_staging(index) && !job_.hosts[index].failure && !job_.hosts[index].excluded) return;
    hosts += receivers_[index].state == State::kReady ? 1 : 0;
  }
  if (job_.options.quiet) return;
  const std::string sent =
      sent_bytes_ == 0 ? "nothing sent" : stage::size_text(sent_bytes_) + " sent";
  job_.print("staged " + stage::files_text(files_, bytes_) + " (" + sent + ") to " +
             counted(hosts, "host") + " in " + tenths_text(monotonic_ns() - began_ns_));
}

std::string Staging::directory(std::size_t index) const {
  return stage::staged_directory(root_, job_.options.working_directory,
                                 receivers_[index].directory);
}

std::string Staging::program() const {
  const std::string program = job_.options.command.empty() ? "" : job_.options.command.front();
  if (job_.options.program_kind == ProgramKind::kModule) return program;
  return stage::staged_program(root_, job_.options.working_directory, program);
}

std::optional<HostEnvironment> Staging::environment(std::size_t index) const {
  if (!covers(index) || receivers_[index].environment.empty()) return std::nullopt;
  const std::string& tree = receivers_[index].directory;
  HostEnvironment environment;
  environment.directory = receivers_[index].environment;
  environment.is_conda = requirements_.is_conda();
  for (const std::string& directory : imports_)
    environment.imports.push_back(directory == "." ? tree : tree + "/" + directory);
  return environment;
}

void Staging::add_environment(StageBegin& begin) const {
  const Options& options = job_.options;
  if (options.stage_venv == StageVenv::kNone) return;
  StageEnvironment& environment = *begin.mutable_environment();
  environment.set_search_path(path_without_environment(job_.request.caller));
  if (options.stage_venv == StageVenv::kUv) {
    std::string inside;
    (void)stage::is_below(options.uv_project, root_, inside);
    environment.set_project(inside.empty() ? "." : inside);
    return;
  }
  environment.set_directory(std::string(kEnvironmentPart));
  if (has_python_) environment.set_python(std::string(kPythonPart));
  *environment.mutable_requirements() = requirements_;
}

void Staging::reject_late_listing() {
  const std::string directory = job_.options.stage_directory.empty()
                                    ? job_.options.working_directory
                                    : job_.options.stage_directory;
  reject(Error{Code::kDeadlineExceeded,
               "the file system of " + directory + " did not respond within --start-timeout",
               "stage another directory, or allow more time: --start-timeout"},
         "");
}

bool Staging::is_moving() {
  if (is_listing_) {
    const std::uint64_t listed = *listed_;
    return listed != std::exchange(listed_before_, listed);
  }
  if (!manifest_ || monotonic_ns() - moved_ns_ > kStageStuckNs) return false;
  for (std::size_t index = 0; index < receivers_.size(); ++index)
    if (is_staging(index) && receivers_[index].state != State::kAbsent) return true;
  return false;
}

std::string Staging::step(std::size_t index) const {
  if (is_listing_) return "reading the files of --stage";
  switch (receivers_[index].state) {
    case State::kAbsent:
      return "waiting for its answer";
    case State::kManifest:
      return "comparing the files of --stage";
    case State::kAnswered:
      return "waiting for other hosts to compare the files of --stage";
    case State::kReceiving:
      if (!receivers_[index].preparing.empty()) return receivers_[index].preparing;
      return "receiving the files of --stage";
    case State::kReady:
    case State::kFailed:
      return "waiting for its answer";
  }
  return "";
}

std::string Staging::progress_line() const {
  if (is_listing_) return "reading the files of --stage";
  std::uint64_t total = 0, least = ~std::uint64_t{0}, most = 0;
  std::size_t hosts = 0, slowest = 0;
  for (std::size_t index = 0; index < receivers_.size(); ++index) {
    const Receiver& receiver = receivers_[index];
    if (receiver.state != State::kReceiving || receiver.chain->blocks.blocks() == 0) continue;
    ++hosts;
    const std::uint64_t done =
        std::min(receiver.taken * stage::kBlockBytes, receiver.chain->blocks.total_bytes());
    most = std::max(most, done);
    if (done >= least) continue;
    least = done;
    slowest = index;
    total = receiver.chain->blocks.total_bytes();
  }
  if (hosts == 0) return "";
  const double seconds = static_cast<double>(monotonic_ns() - began_ns_) / 1e9;
  std::array<char, 64> rate{};
  std::snprintf(rate.data(), rate.size(), "%d %%, %.0f MB/s", static_cast<int>(100 * least / total),
                static_cast<double>(least) / 1e6 / seconds);
  std::string line =
      "staging " + stage::size_text(total) + " to " + counted(hosts, "host") + ": " + rate.data();
  if (hosts > 1 && most - least > total / 20)
    line += ", " + job_.hosts[slowest].name() + " slowest";
  return line;
}

std::string Staging::dry_run_line() const {
  if (!manifest_) return "";
  return "--stage would send " + stage::files_text(files_, bytes_) + " from " + root_ +
         ", less what the hosts already have; the program was not checked there";
}

}  // namespace ivy
