// The output of a job that goes into the background: workers' bytes go to files only; what ivyrun
// says goes to the caller's terminal until the job leaves it, and to LOGDIR/ivyrun.log always.
// Thread: the loop's. Lifetime: destroy it outside its handlers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/screen/log_files.h"
#include "launcher/screen/output.h"

namespace ivy {

class DetachedOutput final : public Output {
 public:
  // foreground: where messages are shown until leave(). Only the handler `consumed` is called.
  DetachedOutput(boost::asio::io_context& loop, const Options& options, std::string job_id,
                 Handlers handlers, std::unique_ptr<Output> foreground);
  ~DetachedOutput() override;

  // A launcher that has taken the job over goes on with the files; before begin().
  void go_on_with_files() { appends_ = true; }
  // The stream goes on after its first `bytes` bytes: what its file already had beyond them when it
  // was opened is skipped. Returns how many of these bytes the file lacks.
  std::uint64_t continue_at(int rank, int stream, std::uint64_t bytes);
  // Everything said so far has been shown: calls left(descriptor of ivyrun.log), and from then on
  // uses the caller's standard descriptors no more.
  void leave(std::function<void(int log_fd)> left);

  // Also opens LOGDIR/ivyrun.log.
  void begin(std::uint32_t generation, const std::vector<RankPlace>& places, int max_attempts,
             Ready ready) override;
  void worker_bytes(int rank, int stream, std::string_view bytes, bool end) override;
  void say(std::string_view text) override;
  void status_line(const std::string& text) override;
  bool has_terminal() const override { return foreground_ && foreground_->has_terminal(); }
  std::string stderr_tail(int rank) const override;
  // A detached job has no reader at the console: its summary has to be complete.
  bool is_just_shown(int) const override { return false; }
  std::string log_path(int rank, int stream) const override { return files_.path(rank, stream); }
  void finish(std::function<void()> done) override;
  void limit_finish(std::chrono::milliseconds limit) override;
  std::vector<std::string> complaints() const override;
  std::string console_failure() const override { return ""; }

 private:
  struct RankRecord {
    int host_index = 0;
    std::string tail;
    std::uint64_t left_out[2] = {0, 0};  // Bytes to come of each stream that the file has.
  };
  void open_log(Ready ready);
  void log_moved();
  void take_log();
  void files_moved();
  void consumed(int host_index, std::uint64_t bytes);
  void report_consumed();
  void check_finished();
  std::function<void()> wake(void (DetachedOutput::*moved)());

  boost::asio::io_context& loop_;
  const Options options_;
  const std::string job_id_;
  Handlers handlers_;
  std::unique_ptr<Output> foreground_;
  // Threads look at this before they wake the loop for us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  LogFiles files_;
  FileWriter log_writer_;
  FileWriter::File log_ = 0;     // ivyrun.log; 0: not opened yet.
  std::shared_ptr<int> log_fd_;  // A descriptor of it for those who leave; the writer sets it.
  Ready log_opened_;
  bool appends_ = false;
  bool is_leaving_ = false;
  std::function<void()> done_;  // Set by finish(), called when all is written.
  bool is_finishing_ = false;
  std::optional<std::chrono::milliseconds> finish_limit_;
  boost::asio::steady_timer finish_timer_;
  std::string unlogged_;  // Said before ivyrun.log was opened.
  std::string log_complaint_;
  std::map<int, RankRecord> ranks_;
  std::map<int, std::uint64_t> owed_;  // Consumed bytes by host, not yet reported.
  bool report_scheduled_ = false;
};

// LOGDIR/ivyrun.log
std::string launcher_log_path(const std::string& log_dir);

}  // namespace ivy
