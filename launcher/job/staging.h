// SPDX-License-Identifier: Apache-2.0
// --stage: sends the staged files to the hosts before their Hello, which then names the staged
// directory. The order for one host (proto/wire/stage.proto):
//
//   begin()         lists and hashes the files, while the hosts are dialled
//   host_up()       sends the manifest
//   on_missing()    the host lacks these objects
//   start_chains()  hosts that lack the same objects form a chain; the launcher feeds its first one
//   on_unfed()      a host whose predecessor is lost is fed by the launcher, too
//   on_ready()      the host has its directory: calls StagingEvents::host_staged()
//
// At most a window of blocks is in transit to each host that the launcher feeds, so that commands
// and heartbeats never wait for long. Thread: the loop's; files are read in tasks.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/core/job_context.h"
#include "launcher/links/host_link.h"
#include "launcher/plan/job_plan.h"
#include "launcher/stage/stage_files.h"
#include "proto/os/blocking.h"
#include "proto/wire/job.pb.h"
#include "proto/wire/stage.pb.h"
#include "proto/wire/stage_codec.h"

namespace ivy {

// Implemented by BringUp.
class StagingEvents {
 public:
  // The files were listed; before that, no host gets any.
  virtual void files_listed() = 0;
  // The host has its files, so directory() and program() are known.
  virtual void host_staged(std::size_t index) = 0;
  virtual void host_not_staged(std::size_t index, const LinkDown& down) = 0;

 protected:
  ~StagingEvents() = default;
};

class Staging {
 public:
  Staging(JobContext& job, StagingEvents& owner);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Lists the files, unless the job has no --stage or no host that gets files.
  void begin();
  // Returns true if the host gets files: all but this machine, which has them, unless --stage-to
  // was given.
  bool covers(std::size_t index) const;
  bool is_listing() const { return is_listing_; }
  // The host is connected, and has not got its Hello.
  void host_up(std::size_t index);
  void take_output(std::size_t index, const TaskOutput& output);
  // The host has failed or was given up.
  void forget(std::size_t index);

  // The working directory and the program for the host's Hello.
  std::string directory(std::size_t index) const;
  std::string program() const;
  // --stage-venv: the environment of a host that was staged.
  std::optional<HostEnvironment> environment(std::size_t index) const;

  // Call when --start-timeout has expired: returns true if files have been read since the last
  // call, or sent in the last minute.
  bool is_moving();
  // The files could not be read within --start-timeout.
  void reject_late_listing();
  // Returns the step that the host has reached, for messages.
  std::string step(std::size_t index) const;
  // Returns "staging 812 MiB to 8 hosts: 41 %, 118 MB/s, node03 slowest", or an empty string.
  std::string progress_line() const;
  // --dry-run: returns "--stage would send 12 files, 3.1 MiB from /home/u/proj, ...".
  std::string dry_run_line() const;

 private:
  // The blocks that a host gets from the launcher.
  struct Feed {
    std::uint64_t next = 0;           // The next block to read.
    std::deque<std::size_t> transit;  // Bytes of the blocks from `acknowledged` on.
    std::size_t transit_bytes = 0;
    std::size_t window = 0;
    std::uint64_t acknowledged = 0;
    std::int64_t acknowledged_ns = 0;
    bool is_reading = false;
  };
  // Hosts that lack the same objects.
  struct Chain {
    stage::BlockMap blocks;
    std::vector<std::size_t> hosts;  // Each gets its blocks from the one before it.
    std::size_t awaited = 0;         // Hosts that have not connected to the one before them.
    bool has_started = false;
    std::int64_t deadline_ns = 0;
  };
  enum class State { kAbsent, kManifest, kAnswered, kReceiving, kReady, kFailed };
  struct Receiver {
    State state = State::kAbsent;
    stage::MessageSplitter messages;
    std::size_t manifest_sent = 0, manifest_taken = 0;
    StageMissing missing;
    std::shared_ptr<Chain> chain;
    bool awaits_predecessor = false;
    std::uint64_t taken = 0;  // Blocks that it has.
    std::optional<Feed> feed;
    std::string directory;
    std::string environment;  // --stage-venv: its directory.
    std::string preparing;    // What the host does after it has received everything.
  };

  void listed(Result<stage::SourceTree> tree);
  void add_environment(StageBegin& begin) const;
  void send_manifest(std::size_t index);
  void send(std::size_t index, const std::string& framed_order);
  void take_reply(std::size_t index, const StageReply& reply);
  void on_missing(std::size_t index, const StageMissing& missing);
  void check_chains();
  void start_chains();
  void start_chain(std::vector<std::size_t> hosts);
  void on_listening(std::size_t index, const StageListening& listening);
  void on_feeding(std::size_t index);
  void on_unfed(std::size_t index, const StageUnfed& unfed);
  void feed_chain(const std::shared_ptr<Chain>& chain);
  void pump(std::size_t index);
  void on_progress(std::size_t index, std::uint64_t next_block);
  void on_ready(std::size_t index, const StageReady& ready);
  void on_failed(std::size_t index, const StageFailed& failed);
  void fail(std::size_t index, const RemoteText& message, const std::string& fix,
            LinkFailure failure = LinkFailure::kStaging);
  void reject(const Error& error, const std::string& host);
  void schedule_tick();
  void tick();
  void print_summary();
  bool is_staging(std::size_t index) const;

  JobContext& job_;
  StagingEvents& owner_;
  bool is_listing_ = false;
  std::shared_ptr<std::atomic<std::uint64_t>> listed_;  // Counts what the listing has read,
  std::uint64_t listed_before_ = 0;                     // and its value at the last is_moving().
  bool is_over_ = false;  // The job was rejected because of the files.
  std::string root_;
  std::vector<std::string> imports_;  // --stage-venv, as in SourceTree.
  StagedPython requirements_;
  bool has_python_ = false;
  std::shared_ptr<const stage::Manifest> manifest_;
  std::vector<std::string> manifest_messages_;
  std::size_t files_ = 0;
  std::uint64_t bytes_ = 0, sent_bytes_ = 0;
  std::vector<Receiver> receivers_;
  std::int64_t began_ns_ = 0, moved_ns_ = 0, first_missing_ns_ = 0;
  boost::asio::steady_timer timer_;
  BlockingPool pool_;  // Last: its tasks refer to the other members.
};

}  // namespace ivy
