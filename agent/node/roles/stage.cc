// SPDX-License-Identifier: Apache-2.0
// Receiver::run() waits for orders, blocks and the next host; take_order() dispatches; take_block()
// handles a block from either source; finish() makes the tree.
#include "agent/node/roles/stage.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/facts/staged_python.h"
#include "agent/node/hang/tool_run.h"
#include "agent/node/roles/stage_cache.h"
#include "agent/node/roles/stage_peers.h"
#include "agent/node/spawn/spawn.h"
#include "proto/contract/env.h"
#include "proto/contract/exit_code.h"
#include "proto/os/clock.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"
#include "proto/os/process.h"
#include "proto/os/socket_waits.h"
#include "proto/wire/stage.pb.h"
#include "proto/wire/stage_codec.h"

extern char** environ;

namespace ivy {
namespace {

using stage::BlockMap;
using stage::IncomingObject;
using stage::MessageSplitter;
using stage::StageCache;

// The next host gets its blocks from the launcher if it takes none for this time.
constexpr std::chrono::seconds kPassOnLimit{20};
// This host asks for its blocks if the host before it sends none for this time.
constexpr std::int64_t kFeedLimitNs = 30'000'000'000;
// How often a host that is fed by another one reports its progress.
constexpr std::int64_t kReportNs = 200'000'000;
constexpr std::size_t kReadBytes = 512u << 10;
// The largest environments, such as torch's, take some minutes to download.
constexpr std::int64_t kSyncLimitNs = 1'800'000'000'000;
constexpr std::size_t kShownSyncBytes = 4096;

// Returns uv's path: SSH starts shells with a short PATH, so its usual locations are searched, too.
std::string find_uv(const std::string& search_path) {
  int ignored = 0;
  const std::string home = own_variable("HOME");
  for (const std::string& path :
       {search_path, own_variable("PATH"), home + "/.local/bin:" + home + "/.cargo/bin"})
    if (const auto found = find_executable("uv", path, "/", &ignored); found.ok()) return *found;
  return {};
}

class Receiver {
 public:
  int run();

 private:
  Result<void> take_order(const StageOrder& order);
  Result<void> take_manifest(const StageManifestPart& part);
  Result<void> check_manifest();
  Result<void> send_missing();
  Result<void> check_space(std::uint64_t missing_bytes);
  Result<void> receive(const StageReceive& order);
  void feed_from(const StageFeedFrom& order);
  void lose_feed(const std::string& why);
  Result<void> read_feed();
  Result<void> read_orders(bool& is_over);
  void accept_next();
  void pass_on(const std::string& message);
  Result<void> take_block(const StageBlock& block, const std::string& message);
  Result<void> write_object(std::uint32_t object, std::uint64_t offset, std::string_view bytes);
  Result<void> finish();
  Result<std::string> prepare(const std::string& tree);
  Result<void> sync_with_uv(const std::string& project, const std::string& directory);
  void report_preparing(const std::string& what);
  void report_progress(bool must_report);
  void send(const StageReply& reply);
  void fail(const Error& error);
  std::string path_of(std::uint32_t object) const;

  StageBegin begin_;
  std::optional<StageCache> cache_;
  std::string packed_manifest_;
  std::uint64_t manifest_parts_ = 0;
  StageManifest manifest_;
  BlockMap blocks_;
  std::uint64_t next_block_ = 0;
  bool is_receiving_ = false;
  bool is_over_ = false;                  // The tree is there, or staging has failed.
  std::optional<std::uint32_t> current_;  // The object that `incoming_` receives.
  std::optional<IncomingObject> incoming_;
  std::optional<std::uint32_t> changed_;  // The object whose hash was wrong.
  bool is_about_environment_ = false;     // A failure concerns the environment, not the files.

  MessageSplitter orders_, feed_messages_;
  Descriptor listener_, next_, feed_;
  std::int64_t feed_ns_ = 0;  // When the feed last sent something.
  std::int64_t reported_ns_ = 0;
};

int Receiver::run() {
  for (;;) {
    std::array<pollfd, 3> polled{pollfd{STDIN_FILENO, POLLIN, 0},
                                 pollfd{feed_ ? feed_.get() : -1, POLLIN, 0},
                                 pollfd{listener_ ? listener_.get() : -1, POLLIN, 0}};
    if (poll(polled.data(), polled.size(), feed_ ? 1'000 : -1) < 0 && errno != EINTR)
      return kExitInternal;
    bool input_is_over = false;
    Result<void> done;
    if (polled[0].revents != 0) done = read_orders(input_is_over);
    if (done.ok() && polled[1].revents != 0 && feed_) done = read_feed();
    if (polled[2].revents != 0 && listener_) accept_next();
    if (feed_ && monotonic_ns() - feed_ns_ > kFeedLimitNs) lose_feed("it sends nothing");
    if (!done.ok()) fail(done.error());
    if (input_is_over) return 0;
  }
}

Result<void> Receiver::read_orders(bool& input_is_over) {
  std::string bytes(kReadBytes, '\0');
  const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return {};
  input_is_over = count <= 0;
  if (count <= 0) return {};
  orders_.feed({bytes.data(), static_cast<std::size_t>(count)});
  for (;;) {
    const std::optional<std::string> message = IVY_TRY(orders_.next());
    if (!message) return {};
    StageOrder order;
    if (!order.ParseFromString(*message)) return Error{Code::kDataLoss, "an invalid order"};
    if (is_over_) continue;
    if (order.has_block())
      IVY_CHECK(take_block(order.block(), *message));
    else
      IVY_CHECK(take_order(order));
  }
}

Result<void> Receiver::take_order(const StageOrder& order) {
  switch (order.kind_case()) {
    case StageOrder::kBegin: {
      begin_ = order.begin();
      utsname names{};
      uname(&names);
      std::string root = IVY_TRY(stage::cache_root(begin_.directory(), own_variable("HOME"),
                                                   own_variable("XDG_CACHE_HOME")));
      cache_.emplace(IVY_TRY(StageCache::open(std::move(root), names.nodename)));
      return {};
    }
    case StageOrder::kManifest:
      return take_manifest(order.manifest());
    case StageOrder::kReceive:
      return receive(order.receive());
    case StageOrder::kFeedFrom:
      feed_from(order.feed_from());
      return {};
    case StageOrder::kBlock:
    case StageOrder::KIND_NOT_SET:
      break;
  }
  return Error{Code::kDataLoss, "an unknown order"};
}

Result<void> Receiver::take_manifest(const StageManifestPart& part) {
  if (!cache_ || part.size() > stage::kMaxManifestBytes ||
      packed_manifest_.size() + part.bytes().size() > stage::kMaxManifestBytes)
    return Error{Code::kDataLoss, "a manifest that is too large, or too early"};
  packed_manifest_ += part.bytes();
  StageReply reply;
  reply.mutable_progress()->set_next_block(++manifest_parts_);
  send(reply);
  if (!part.last()) return {};
  const std::string text =
      IVY_TRY(stage::decompressed(packed_manifest_, static_cast<std::size_t>(part.size())));
  packed_manifest_ = {};
  if (!manifest_.ParseFromString(text)) return Error{Code::kDataLoss, "an invalid manifest"};
  IVY_CHECK(check_manifest());
  if (const StageEnvironment& wanted = begin_.environment(); wanted.has_requirements()) {
    is_about_environment_ = true;
    IVY_CHECK(check_requirements(wanted.requirements(), !wanted.python().empty(),
                                 {wanted.search_path(), own_variable("HOME")}));
    is_about_environment_ = false;
  }
  return send_missing();
}

Result<void> Receiver::check_manifest() {
  for (const StageEntry& entry : manifest_.entries())
    if (entry.object() >= static_cast<std::uint32_t>(std::max(1, manifest_.objects_size())))
      return Error{Code::kDataLoss, "an invalid manifest"};
  for (const StageObject& object : manifest_.objects())
    if (object.sha256().size() != 32) return Error{Code::kDataLoss, "an invalid manifest"};
  return {};
}

Result<void> Receiver::send_missing() {
  StageReply reply;
  StageMissing& missing = *reply.mutable_missing();
  std::uint64_t bytes = 0;
  for (int i = 0; i < manifest_.objects_size(); ++i) {
    const StageObject& object = manifest_.objects(i);
    if (object.size() == 0 || cache_->has(object)) continue;
    StagePiece& piece = *missing.add_pieces();
    piece.set_object(static_cast<std::uint32_t>(i));
    piece.set_from(cache_->partial_bytes(object));
    bytes += object.size() - piece.from();
  }
  IVY_CHECK(check_space(bytes));
  send(reply);
  return {};
}

Result<void> Receiver::check_space(std::uint64_t missing_bytes) {
  const std::uint64_t needed = missing_bytes + cache_->tree_bytes(manifest_);
  if (cache_->free_bytes() >= needed) return {};
  const auto mib = [](std::uint64_t bytes) {
    return std::to_string((bytes + (1u << 20) - 1) >> 20);
  };
  return Error{Code::kResourceExhausted,
               cache_->root() + " needs " + mib(needed) + " MiB, and " + mib(cache_->free_bytes()) +
                   " MiB are free",
               "free some space there, or choose another directory: --stage-to DIR"};
}

// -- Blocks

Result<void> Receiver::receive(const StageReceive& order) {
  std::vector<stage::Piece> pieces;
  for (const StagePiece& piece : order.pieces()) {
    if (piece.object() >= static_cast<std::uint32_t>(manifest_.objects_size()))
      return Error{Code::kDataLoss, "an invalid order"};
    pieces.push_back(
        {piece.object(), piece.from(), manifest_.objects(static_cast<int>(piece.object())).size()});
  }
  blocks_ = BlockMap(std::move(pieces));
  is_receiving_ = true;
  if (order.listens()) {
    StageReply reply;
    StageListening& answer = *reply.mutable_listening();
    if (Result<stage::Listening> listening = stage::listen_for_peer(begin_); listening.ok()) {
      listener_ = std::move(listening->socket);
      answer.set_port(listening->port);
      for (const std::string& address : listening->addresses) answer.add_addresses(address);
    }
    send(reply);
  }
  if (blocks_.blocks() == 0) return finish();
  return {};
}

void Receiver::feed_from(const StageFeedFrom& order) {
  Result<Descriptor> socket = stage::dial_peer(order, begin_);
  if (!socket.ok()) return lose_feed(socket.error().message);
  feed_ = std::move(socket).value();
  feed_ns_ = monotonic_ns();
  StageReply reply;
  reply.mutable_feeding();
  send(reply);
}

void Receiver::lose_feed(const std::string& why) {
  feed_.reset();
  if (is_over_) return;
  StageReply reply;
  reply.mutable_unfed()->set_next_block(next_block_);
  reply.mutable_unfed()->set_why(why);
  send(reply);
}

Result<void> Receiver::read_feed() {
  std::string bytes(kReadBytes, '\0');
  const ssize_t count = recv(feed_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (count <= 0) {
    lose_feed("it closed the connection");
    return {};
  }
  feed_ns_ = monotonic_ns();
  feed_messages_.feed({bytes.data(), static_cast<std::size_t>(count)});
  while (feed_ && !is_over_) {
    const Result<std::optional<std::string>> message = feed_messages_.next();
    if (message.ok() && !*message) return {};
    StageOrder order;
    if (!message.ok() || !order.ParseFromString(**message) || !order.has_block() ||
        order.block().number() != next_block_) {
      lose_feed("it sends something else");
      return {};
    }
    IVY_CHECK(take_block(order.block(), **message));
  }
  return {};
}

void Receiver::accept_next() {
  Result<Descriptor> socket = stage::accept_peer(listener_.get(), begin_);
  if (!socket.ok()) return;
  next_ = std::move(socket).value();
  listener_.reset();
}

void Receiver::pass_on(const std::string& message) {
  if (!next_) return;
  const WaitLimit limit{steady_now() + kPassOnLimit, nullptr};
  if (!send_all(next_.get(), stage::framed(message), limit)) next_.reset();
}

Result<void> Receiver::take_block(const StageBlock& block, const std::string& message) {
  if (!is_receiving_ || block.number() < next_block_) return {};  // Also sent by a lost feed.
  if (block.number() != next_block_) return Error{Code::kDataLoss, "a block is missing"};
  pass_on(message);
  const std::size_t size = blocks_.block_bytes(next_block_);
  const std::string bytes =
      block.is_compressed() ? IVY_TRY(stage::decompressed(block.bytes(), size)) : block.bytes();
  if (bytes.size() != size) return Error{Code::kDataLoss, "a block has the wrong size"};
  std::size_t at = 0;
  for (const stage::Segment& segment : blocks_.segments(next_block_)) {
    IVY_CHECK(write_object(segment.object, segment.offset,
                           std::string_view(bytes).substr(at, segment.bytes)));
    at += segment.bytes;
  }
  ++next_block_;
  report_progress(!feed_);
  if (next_block_ == blocks_.blocks()) return finish();
  return {};
}

Result<void> Receiver::write_object(std::uint32_t number, std::uint64_t offset,
                                    std::string_view bytes) {
  const StageObject& object = manifest_.objects(static_cast<int>(number));
  if (current_ != number) {
    current_ = number;
    // More than `offset` bytes may be here, if another host of the chain has fewer.
    incoming_.emplace(IVY_TRY(cache_->begin(object, offset)));
  }
  if (Result<void> written = incoming_->write(bytes); !written.ok())
    return written.error().context(path_of(number));
  if (offset + bytes.size() < object.size()) return {};
  const Result<void> kept = cache_->finish(object, *incoming_);
  incoming_.reset();
  current_.reset();
  if (kept.ok()) return {};
  if (kept.error().code == Code::kDataLoss) changed_ = number;
  return kept.error().context(path_of(number));
}

// Returns the first path with this content, for messages.
std::string Receiver::path_of(std::uint32_t object) const {
  for (const StageEntry& entry : manifest_.entries())
    if (S_ISREG(entry.mode()) && entry.object() == object) return entry.path();
  return "";
}

Result<void> Receiver::finish() {
  is_over_ = true;
  is_receiving_ = false;
  feed_.reset();
  listener_.reset();
  // The next host reads the end of the connection after the last block.
  if (next_) shutdown(next_.get(), SHUT_WR);
  const std::string tree = IVY_TRY(cache_->make_tree(begin_.name(), manifest_));
  is_about_environment_ = true;
  StageReply reply;
  reply.mutable_ready()->set_directory(tree);
  if (begin_.has_environment()) reply.mutable_ready()->set_environment(IVY_TRY(prepare(tree)));
  send(reply);
  manifest_.Clear();
  blocks_ = BlockMap();
  // After the answer, because it may take seconds.
  cache_->evict(begin_.max_bytes(), begin_.max_age_s());
  return {};
}

// -- The environment

// Returns the directory of the environment. A tree of a job links to it, and it must have the same
// path in every job.
Result<std::string> Receiver::prepare(const std::string& tree) {
  const StageEnvironment& wanted = begin_.environment();
  const auto physical = [&](const std::string& path) {
    std::array<char, PATH_MAX> found{};
    const std::string whole = tree + "/" + path;
    return realpath(whole.c_str(), found.data()) == nullptr ? whole : std::string(found.data());
  };
  if (!wanted.project().empty()) {
    const std::string directory = physical(wanted.project()) + "/.venv";
    IVY_CHECK(sync_with_uv(physical(wanted.project()), directory));
    return directory;
  }
  report_preparing("preparing the environment of --stage-venv");
  const std::string directory = physical(wanted.directory());
  const std::string python = wanted.python().empty() ? "" : physical(wanted.python());
  IVY_CHECK(prepare_environment(directory, python, {wanted.search_path(), own_variable("HOME")}));
  return directory;
}

// Runs `uv sync --frozen`, which creates or updates the environment of a project.
Result<void> Receiver::sync_with_uv(const std::string& project, const std::string& directory) {
  const std::string uv = find_uv(begin_.environment().search_path());
  if (uv.empty())
    return Error{Code::kNotFound, "uv is not in PATH, ~/.local/bin or ~/.cargo/bin",
                 "install uv there, or send the environment of this machine: --stage-venv"};
  Environment environment = environment_of(environ);
  set_variable(environment, "UV_PROJECT_ENVIRONMENT", directory);
  const auto deadline = static_cast<std::uint64_t>(monotonic_ns() + kSyncLimitNs);
  const auto run = IVY_TRY(
      ToolRun::start({uv, "sync", "--frozen", "--project", project}, environment, deadline));
  constexpr useconds_t kPauseUs = 20'000;
  std::int64_t reported_ns = 0;
  while (!run->advance(static_cast<std::uint64_t>(monotonic_ns()))) {
    if (monotonic_ns() - reported_ns > 5 * kReportNs) {
      reported_ns = monotonic_ns();
      report_preparing("running uv sync --frozen");
    }
    usleep(kPauseUs);
  }
  int status = 0;
  const bool has_exited = waitpid(run->pid(), &status, WNOHANG) == run->pid();
  if (has_exited && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  std::string output = run->output();
  while (output.ends_with('\n')) output.pop_back();
  if (output.size() > kShownSyncBytes) output.erase(0, output.size() - kShownSyncBytes);
  return Error{Code::kFailedPrecondition,
               uv + " sync --frozen " + (run->was_late() ? "did not finish in 30 min" : "failed") +
                   ":\n" + output,
               "run it there: cd " + project + " && uv sync --frozen"};
}

void Receiver::report_preparing(const std::string& what) {
  StageReply reply;
  reply.mutable_preparing()->set_what(what);
  send(reply);
}

void Receiver::report_progress(bool must_report) {
  const std::int64_t now = monotonic_ns();
  if (!must_report && now - reported_ns_ < kReportNs) return;
  reported_ns_ = now;
  StageReply reply;
  reply.mutable_progress()->set_next_block(next_block_);
  send(reply);
}

void Receiver::send(const StageReply& reply) {
  // The supervisor reads whenever the launcher acknowledges.
  write_all(STDOUT_FILENO, stage::framed(reply.SerializeAsString()), WhenFull::kWait);
}

void Receiver::fail(const Error& error) {
  is_over_ = true;
  is_receiving_ = false;
  next_.reset();
  feed_.reset();
  listener_.reset();
  StageReply reply;
  reply.mutable_failed()->set_what(error.message);
  reply.mutable_failed()->set_fix(error.fix);
  reply.mutable_failed()->set_is_about_environment(is_about_environment_);
  if (changed_) reply.mutable_failed()->set_changed_object(*changed_);
  send(reply);
}

}  // namespace

int run_stage() {
  ::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_NAME, "ivy-stage");
  return Receiver().run();
}

}  // namespace ivy
