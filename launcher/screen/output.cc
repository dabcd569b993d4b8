#include "launcher/screen/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <optional>
#include <set>

#include "launcher/report/clock.h"
#include "launcher/screen/chunk_queue.h"
#include "launcher/screen/console.h"
#include "launcher/screen/log_files.h"
#include "launcher/screen/terminal.h"

namespace ivy {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
// An unfinished line is shown after this silence of its stream.
constexpr std::int64_t kPartialDelay = 200 * kMillisecond;
// Progress bars: how often the newest state is shown on a terminal, and elsewhere.
constexpr std::int64_t kStateDelayOnTerminal = 200 * kMillisecond;
constexpr std::int64_t kStateDelayElsewhere = 5000 * kMillisecond;
// Least time between two drawings of a terminal's status line: 10 Hz.
constexpr std::int64_t kDrawDelay = 100 * kMillisecond;
// Standard error kept per rank for the verdict.
constexpr std::size_t kTailBytes = 64u << 10;
// --console-overflow=drop: so much may wait for the reader before lines are dropped.
constexpr std::size_t kDropAboveBytes = 1u << 20;
// Raw bytes formatted in one go, so that labels cannot make a large chunk much larger in memory.
constexpr std::size_t kSliceBytes = 64u << 10;
// Formatted text is written at the latest when there is so much of it.
constexpr std::size_t kFlushBytes = 64u << 10;
// With drop, a reader that takes nothing keeps finish() waiting only this long.
constexpr std::chrono::milliseconds kDropFinishLimit{2000};

bool is_same_place(int first_fd, int second_fd) {
  struct stat first {
  }, second{};
  if (fstat(first_fd, &first) != 0 || fstat(second_fd, &second) != 0) return false;
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// What stands so few lines above can be read there, and need not be said again.
constexpr std::uint64_t kJustShownLines = 3;

// A console, and what waits for it.
struct Desk {
  std::unique_ptr<Console> console;
  std::uint64_t lines = 0;  // Workers' lines shown so far.
  ChunkQueue queue;
  bool wants_flush = false;
};

class ConsoleOutput final : public Output {
 public:
  ConsoleOutput(boost::asio::io_context& loop, const Options& options, const std::string& job_id,
                Handlers handlers);
  ~ConsoleOutput() override { *alive_ = false; }
  void begin(std::uint32_t generation, const std::vector<RankPlace>& places, int max_attempts,
             Ready ready) override;
  void worker_bytes(int rank, int stream, std::string_view bytes, bool end) override;
  void say(std::string_view text) override;
  void status_line(const std::string& text) override;
  bool has_terminal() const override { return is_capable_terminal(STDERR_FILENO); }
  std::string stderr_tail(int rank) const override;
  bool is_just_shown(int rank) const override;
  std::string log_path(int rank, int stream) const override { return files_.path(rank, stream); }
  void finish(std::function<void()> done) override;
  void limit_finish(std::chrono::milliseconds limit) override;
  std::vector<std::string> complaints() const override;
  std::string console_failure() const override { return console_failure_; }

 private:
  struct RankRecord {
    std::array<Lane, 2> lanes;
    std::string tail;
  };

  void make_desk(std::size_t index, int fd);
  Desk& desk_of(const Lane& lane);
  ConsoleStyle style_for(int fd) const;
  bool is_shown(const RankPlace& place) const;
  bool is_shown(const RankPlace& place, int stream) const;
  void prepare_lane(Lane& lane, const LabelStyle& style, const RankPlace& place);
  void keep_tail(RankRecord& record, std::string_view bytes);
  void accept(Lane& lane, std::string_view bytes, bool end);
  std::string_view drop_some(Desk& desk, Lane& lane, std::string_view bytes);
  void lose(Lane& lane, std::string_view bytes);
  void process(Desk& desk, Lane& lane, ChunkKind kind, std::string_view bytes);
  void drain(Desk& desk);
  void await_partial(Desk& desk, Lane& lane);
  void schedule_flush(Desk& desk);
  void consumed(int host_index, std::uint64_t bytes);
  void report_consumed();
  void files_moved();
  void console_failed(std::size_t index, int errno_value);
  void arm(std::int64_t due_ns);
  void on_timer();
  void show_due_partials(std::int64_t now_ns);
  void watch_for_stall();
  std::uint64_t written() const;
  bool all_written() const;
  void check_finished();
  Lane& lane_at(std::uint32_t number) { return *lanes_[number]; }

  boost::asio::io_context& loop_;
  const Options options_;
  const std::string job_id_;
  Handlers handlers_;
  std::array<std::optional<Desk>, 2> desks_;  // The second only when it is another place.
  std::map<int, RankRecord> ranks_;           // Stable addresses.
  std::vector<Lane*> lanes_;                  // By lane number.
  std::vector<Lane*> waiting_;                // Lanes with an unfinished line.
  // Its thread looks at this before it wakes the loop for us.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  LogFiles files_;
  std::vector<std::string> complaints_;
  std::string console_failure_;
  std::map<int, std::uint64_t> owed_;  // Consumed bytes by host, not yet reported.
  bool report_scheduled_ = false;
  bool closed_reported_ = false;
  boost::asio::steady_timer timer_;
  std::int64_t timer_due_ns_ = 0;  // 0: not armed.
  std::int64_t last_drawn_ns_ = 0;
  boost::asio::steady_timer finish_timer_;
  std::optional<std::chrono::milliseconds> stall_limit_;  // Unset: no limit.
  std::function<void()> done_;
};

ConsoleOutput::ConsoleOutput(boost::asio::io_context& loop, const Options& options,
                             const std::string& job_id, Handlers handlers)
    : loop_(loop),
      options_(options),
      job_id_(job_id),
      handlers_(std::move(handlers)),
      files_([this, &loop, alive = alive_] {
        boost::asio::post(loop, [this, alive] {
          if (*alive) files_moved();
        });
      }),
      timer_(loop),
      finish_timer_(loop) {
  if (options_.overflow == OverflowChoice::kDrop) stall_limit_ = kDropFinishLimit;
  make_desk(0, STDOUT_FILENO);
  if (!is_same_place(STDOUT_FILENO, STDERR_FILENO)) make_desk(1, STDERR_FILENO);
}

void ConsoleOutput::make_desk(std::size_t index, int fd) {
  Console::Handlers handlers;
  handlers.consumed = [this](int host, std::uint64_t bytes) { consumed(host, bytes); };
  handlers.room = [this, index] {
    drain(*desks_[index]);
    check_finished();
  };
  handlers.failed = [this, index](int errno_value) { console_failed(index, errno_value); };
  desks_[index].emplace();
  desks_[index]->console = std::make_unique<Console>(loop_, fd, std::move(handlers));
  desks_[index]->console->set_style(style_for(fd));
}

ConsoleStyle ConsoleOutput::style_for(int fd) const {
  ConsoleStyle style;
  style.is_terminal = is_capable_terminal(fd);
  style.filters_controls = isatty(fd) != 0 && !options_.raw;
  style.timestamps = options_.timestamps;
  style.utf8 = locale_is_utf8();
  return style;
}

Desk& ConsoleOutput::desk_of(const Lane& lane) {
  return lane.stream == 2 && desks_[1] ? *desks_[1] : *desks_[0];
}

bool ConsoleOutput::is_shown(const RankPlace& place) const {
  const ShowRanks& filter = options_.show_ranks;
  if (filter.all) return true;
  if (filter.first_per_host) return place.local_rank == 0;
  const int number = filter.local ? place.local_rank : place.rank;
  return std::find(filter.ranks.begin(), filter.ranks.end(), number) != filter.ranks.end();
}

bool ConsoleOutput::is_shown(const RankPlace& place, int stream) const {
  const int redirected =
      options_.redirects.of(place.local_rank) & ~options_.tee.of(place.local_rank);
  return is_shown(place) && (redirected & stream) == 0;
}

void ConsoleOutput::begin(std::uint32_t generation, const std::vector<RankPlace>& places,
                          int max_attempts, Ready ready) {
  for (auto& desk : desks_) {
    if (!desk) continue;
    while (!desk->queue.empty()) {
      const ChunkQueue::Front front = desk->queue.front(kSliceBytes);
      process(*desk, lane_at(front.lane), front.kind, front.bytes);
      desk->queue.pop(front.bytes.size());
    }
    desk->console->forget_lanes();
  }
  waiting_.clear();
  lanes_.clear();
  ranks_.clear();
  LabelStyle style;
  style.choice = options_.label;
  style.job_id = job_id_;
  style.generation = generation;
  style.max_attempts = max_attempts;
  style.shown_ranks = 0;
  std::set<int> hosts;
  std::vector<int> ranks;
  for (const RankPlace& place : places) {
    style.max_rank = std::max(style.max_rank, place.rank);
    style.host_width = std::max(style.host_width, place.host.size());
    if (is_shown(place, 1) || is_shown(place, 2)) ++style.shown_ranks;
    hosts.insert(place.host_index);
    ranks.push_back(place.rank);
  }
  style.hosts = hosts.size();
  const bool unlabelled = make_label(style, LabelSubject{}, Colour::kOff).empty();
  for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; ++fd) {
    auto& desk = desks_[static_cast<std::size_t>(fd - STDOUT_FILENO)];
    if (!desk) continue;
    ConsoleStyle console_style = style_for(fd);
    console_style.pass_through = unlabelled && style.shown_ranks == 1 && !console_style.timestamps;
    desk->console->set_style(console_style);
  }
  for (const RankPlace& place : places)
    for (Lane& lane : ranks_[place.rank].lanes) {
      lane.stream = &lane == &ranks_[place.rank].lanes[0] ? 1 : 2;
      prepare_lane(lane, style, place);
    }
  if (options_.log_dir.empty() || options_.log_to == LogPlace::kNode) return ready({});
  files_.open_all({options_.log_dir, job_id_, generation, ranks}, std::move(ready));
}

void ConsoleOutput::prepare_lane(Lane& lane, const LabelStyle& style, const RankPlace& place) {
  lane.rank = place.rank;
  lane.host_index = place.host_index;
  lane.shown = is_shown(place, lane.stream);
  const int fd = lane.stream == 2 ? STDERR_FILENO : STDOUT_FILENO;
  const Colour colour = decide_colour(options_.color, isatty(fd) != 0, colour_variables());
  lane.label = make_label(
      style, LabelSubject{place.rank, place.local_rank, place.host, lane.stream}, colour);
  lane.filter =
      ControlFilter(desk_of(lane).console->style().pass_through ? ControlPolicy::kNoStrings
                                                                : ControlPolicy::kColoursOnly);
  lane.number = static_cast<std::uint32_t>(lanes_.size());
  lanes_.push_back(&lane);
}

void ConsoleOutput::worker_bytes(int rank, int stream, std::string_view bytes, bool end) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  Lane& lane = found->second.lanes[stream == 2 ? 1 : 0];
  if (!bytes.empty()) {
    files_.write(rank, stream, bytes);
    if (stream == 2) keep_tail(found->second, bytes);
  }
  if (end) files_.close(rank, stream);
  if (!lane.shown || desk_of(lane).console->has_failed())
    return consumed(lane.host_index, bytes.size());
  accept(lane, bytes, end);
}

void ConsoleOutput::keep_tail(RankRecord& record, std::string_view bytes) {
  if (bytes.size() > kTailBytes) bytes.remove_prefix(bytes.size() - kTailBytes);
  record.tail.append(bytes);
  // Trimmed at twice its size, so that each byte is moved once at most.
  if (record.tail.size() >= 2 * kTailBytes) record.tail.erase(0, record.tail.size() - kTailBytes);
}

std::string ConsoleOutput::stderr_tail(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return "";
  const std::string& tail = found->second.tail;
  return tail.size() <= kTailBytes ? tail : tail.substr(tail.size() - kTailBytes);
}

bool ConsoleOutput::is_just_shown(int rank) const {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return false;
  const Desk& desk = desks_[1] ? *desks_[1] : *desks_[0];
  const Lane& lane = found->second.lanes[1];
  return lane.last_line && lane.dropped_lines == 0 && desk.queue.empty() &&
         !desk.console->has_failed() && desk.lines - *lane.last_line <= kJustShownLines;
}

void ConsoleOutput::accept(Lane& lane, std::string_view bytes, bool end) {
  Desk& desk = desk_of(lane);
  if (options_.overflow == OverflowChoice::kDrop) bytes = drop_some(desk, lane, bytes);
  // What can be shown at once is never copied.
  while (!bytes.empty() && desk.queue.empty() && desk.console->has_room()) {
    const std::string_view slice = bytes.substr(0, kSliceBytes);
    bytes.remove_prefix(slice.size());
    process(desk, lane, ChunkKind::kBytes, slice);
  }
  desk.queue.push(lane.number, ChunkKind::kBytes, bytes);
  if (!end) return;
  if (desk.queue.empty()) {
    process(desk, lane, ChunkKind::kEnd, {});
  } else {
    desk.queue.push(lane.number, ChunkKind::kEnd, {});
  }
}

// --console-overflow=drop: what of these bytes is kept. Only whole lines are dropped; the line that
// is under way when dropping begins is shown to its end, or cut where its end is not here yet.
std::string_view ConsoleOutput::drop_some(Desk& desk, Lane& lane, std::string_view bytes) {
  if (bytes.empty()) return bytes;
  const bool is_full = desk.queue.bytes() > kDropAboveBytes;
  const std::size_t newline = bytes.find('\n');
  const bool has_newline = newline != std::string_view::npos;
  std::string_view kept = bytes;
  if (!lane.dropping && is_full) {
    if (lane.is_in_line && !has_newline) desk.queue.push(lane.number, ChunkKind::kCut, {});
    kept = bytes.substr(0, lane.is_in_line && has_newline ? newline + 1 : 0);
    lane.dropping = kept.size() < bytes.size();
    lose(lane, bytes.substr(kept.size()));
  } else if (lane.dropping && (is_full || (lane.lost_in_line && !has_newline))) {
    kept = {};
    lose(lane, bytes);
  } else if (lane.dropping) {
    // The reader is back: on with the next whole line.
    lane.dropping = false;
    const std::size_t rest_of_line = lane.lost_in_line ? newline + 1 : 0;
    kept = bytes.substr(rest_of_line);
    lose(lane, bytes.substr(0, rest_of_line));
  }
  lane.is_in_line = !kept.empty() && kept.back() != '\n';
  return kept;
}

void ConsoleOutput::lose(Lane& lane, std::string_view bytes) {
  if (bytes.empty()) return;
  lane.lost_in_line = bytes.back() != '\n';
  lane.dropped_lines += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
  consumed(lane.host_index, bytes.size());
}

void ConsoleOutput::process(Desk& desk, Lane& lane, ChunkKind kind, std::string_view bytes) {
  switch (kind) {
    case ChunkKind::kBytes:
      desk.lines += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
      lane.last_line = desk.lines;
      desk.console->show(lane, bytes);
      await_partial(desk, lane);
      break;
    case ChunkKind::kEnd:
      desk.console->end_lane(lane);
      break;
    case ChunkKind::kCut:
      desk.console->cut_lane(lane);
      break;
  }
  schedule_flush(desk);
}

void ConsoleOutput::drain(Desk& desk) {
  while (!desk.queue.empty() && desk.console->has_room()) {
    const ChunkQueue::Front front = desk.queue.front(kSliceBytes);
    process(desk, lane_at(front.lane), front.kind, front.bytes);
    desk.queue.pop(front.bytes.size());
    desk.console->flush();
  }
}

// Small chunks that arrive together leave together; a lone one leaves in the same turn of the loop.
void ConsoleOutput::schedule_flush(Desk& desk) {
  if (desk.console->unwritten() >= kFlushBytes) return desk.console->flush();
  if (desk.wants_flush) return;
  desk.wants_flush = true;
  boost::asio::post(loop_, [this, &desk, alive = alive_] {
    if (!*alive) return;
    desk.wants_flush = false;
    desk.console->flush();
    drain(desk);
    check_finished();
    if (desk.console->bottom_is_due()) arm(last_drawn_ns_ + kDrawDelay);
  });
}

void ConsoleOutput::consumed(int host_index, std::uint64_t bytes) {
  if (bytes == 0) return;
  owed_[host_index] += bytes;
  if (report_scheduled_) return;
  report_scheduled_ = true;
  // Later, because granting may send, and sending may end in a call of ours.
  boost::asio::post(loop_, [this, alive = alive_] {
    if (*alive) report_consumed();
  });
}

void ConsoleOutput::report_consumed() {
  report_scheduled_ = false;
  // Hosts wait for a file system as they wait for a reader: files_moved() comes back here.
  if (!files_.has_room()) return;
  const std::map<int, std::uint64_t> owed = std::exchange(owed_, {});
  for (const auto& [host_index, bytes] : owed) handlers_.consumed(host_index, bytes);
}

void ConsoleOutput::files_moved() {
  files_.take_done();
  report_consumed();
  check_finished();
}

void ConsoleOutput::console_failed(std::size_t index, int errno_value) {
  Desk& desk = *desks_[index];
  while (!desk.queue.empty()) {
    const ChunkQueue::Front front = desk.queue.front(kSliceBytes);
    consumed(lane_at(front.lane).host_index, front.bytes.size());
    desk.queue.pop(front.bytes.size());
  }
  const bool is_output = index == 0;
  if (errno_value == EPIPE || errno_value == ECONNRESET) {
    if (is_output && !std::exchange(closed_reported_, true) && handlers_.closed) handlers_.closed();
  } else {
    const std::string which = is_output ? "standard output" : "standard error";
    const std::string failure =
        errno_error(Code::kResourceExhausted, "write to " + which, errno_value).message +
        "; what workers printed from then on is lost";
    if (console_failure_.empty()) console_failure_ = failure;
    // Said at once where it can be said: the job may go on for hours.
    if (is_output && desks_[1]) {
      say("ivyrun: warning: " + failure + "\n");
    } else {
      complaints_.push_back(failure);
    }
  }
  check_finished();
}

void ConsoleOutput::await_partial(Desk& desk, Lane& lane) {
  if (desk.console->style().pass_through || !lane.lines.has_partial()) return;
  const bool is_update = lane.lines.is_update();
  const std::int64_t now_ns = monotonic_ns();
  // A progress bar is shown at its times however often it moves; a partial line waits for silence.
  if (!is_update) {
    lane.due_ns = now_ns + kPartialDelay;
  } else if (!lane.is_waiting || !lane.due_is_for_state) {
    lane.due_ns =
        now_ns + (desk.console->style().is_terminal ? kStateDelayOnTerminal : kStateDelayElsewhere);
  }
  lane.due_is_for_state = is_update;
  if (!lane.is_waiting) waiting_.push_back(&lane);
  lane.is_waiting = true;
  arm(lane.due_ns);
}

void ConsoleOutput::arm(std::int64_t due_ns) {
  if (timer_due_ns_ != 0 && timer_due_ns_ <= due_ns) return;
  timer_due_ns_ = due_ns;
  timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(due_ns)));
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) on_timer();
  });
}

void ConsoleOutput::on_timer() {
  timer_due_ns_ = 0;
  const std::int64_t now_ns = monotonic_ns();
  show_due_partials(now_ns);
  bool draws = false;
  for (auto& desk : desks_) {
    if (!desk || !desk->console->bottom_is_due()) continue;
    desk->console->draw_bottom();
    draws = draws || desk->console->bottom_is_due();
    last_drawn_ns_ = now_ns;
  }
  std::int64_t next_ns = draws ? now_ns + kDrawDelay : 0;
  for (const Lane* lane : waiting_)
    if (next_ns == 0 || lane->due_ns < next_ns) next_ns = lane->due_ns;
  if (next_ns != 0) arm(next_ns);
}

void ConsoleOutput::show_due_partials(std::int64_t now_ns) {
  std::vector<Lane*> still;
  for (Lane* lane : waiting_) {
    Desk& desk = desk_of(*lane);
    lane->is_waiting = false;
    if (!lane->lines.has_partial()) continue;
    const bool is_update = lane->lines.is_update();
    if (lane->due_ns > now_ns || !desk.console->has_room()) {
      lane->due_ns = std::max(lane->due_ns, now_ns + kPartialDelay / 2);
    } else if (!is_update) {
      desk.console->show_partial(*lane);
      schedule_flush(desk);
      continue;
    } else {
      // The bar may go on without a byte that tells: it waits again only when something has come.
      if (!lane->state_is_new) continue;
      desk.console->show_state(*lane);
      schedule_flush(desk);
      lane->due_ns = now_ns + (desk.console->style().is_terminal ? kStateDelayOnTerminal
                                                                 : kStateDelayElsewhere);
    }
    lane->is_waiting = true;
    still.push_back(lane);
  }
  waiting_ = std::move(still);
}

void ConsoleOutput::say(std::string_view text) {
  Desk& desk = desks_[1] ? *desks_[1] : *desks_[0];
  desk.console->say(text);
  desk.console->flush();
  if (desk.console->bottom_is_due()) arm(last_drawn_ns_ + kDrawDelay);
}

void ConsoleOutput::status_line(const std::string& text) {
  if (!has_terminal()) return;
  Console& console = *(desks_[1] ? *desks_[1] : *desks_[0]).console;
  console.set_status(text);
  if (text.empty()) console.draw_bottom();
  if (console.bottom_is_due()) arm(last_drawn_ns_ + kDrawDelay);
}

void ConsoleOutput::finish(std::function<void()> done) {
  done_ = std::move(done);
  for (Lane* lane : lanes_) {
    Desk& desk = desk_of(*lane);
    if (!lane->shown || desk.console->has_failed()) continue;
    if (desk.queue.empty()) {
      process(desk, *lane, ChunkKind::kEnd, {});
    } else {
      desk.queue.push(lane->number, ChunkKind::kEnd, {});
    }
  }
  if (stall_limit_) watch_for_stall();
  boost::asio::post(loop_, [this, alive = alive_] {
    if (!*alive) return;
    for (auto& desk : desks_) {
      if (!desk) continue;
      desk->console->flush();
      drain(*desk);
    }
    check_finished();
  });
}

void ConsoleOutput::limit_finish(std::chrono::milliseconds limit) {
  stall_limit_ = limit;
  if (done_) watch_for_stall();
}

// Waits on as long as the reader takes something.
void ConsoleOutput::watch_for_stall() {
  const std::uint64_t before = written();
  finish_timer_.expires_after(*stall_limit_);
  finish_timer_.async_wait([this, before, alive = alive_](const boost::system::error_code& error) {
    if (error || !*alive || !done_) return;
    if (written() != before) return watch_for_stall();
    std::exchange(done_, nullptr)();
  });
}

std::uint64_t ConsoleOutput::written() const {
  std::uint64_t sum = files_.written();
  for (const auto& desk : desks_)
    if (desk) sum += desk->console->written();
  return sum;
}

bool ConsoleOutput::all_written() const {
  return files_.is_idle() &&
         std::all_of(desks_.begin(), desks_.end(), [](const std::optional<Desk>& desk) {
           return !desk || (desk->queue.empty() && desk->console->is_idle());
         });
}

void ConsoleOutput::check_finished() {
  // Takes the last failures too, for complaints().
  files_.take_done();
  if (!done_ || !all_written()) return;
  finish_timer_.cancel();
  // Later: the caller may destroy us.
  boost::asio::post(loop_, std::exchange(done_, nullptr));
}

std::vector<std::string> ConsoleOutput::complaints() const {
  std::vector<std::string> all = complaints_;
  if (!files_.complaint().empty()) all.push_back(files_.complaint());
  for (const auto& [rank, record] : ranks_) {
    for (const Lane& lane : record.lanes) {
      if (lane.dropped_lines == 0) continue;
      const std::string path = files_.path(rank, lane.stream);
      all.push_back(std::to_string(lane.dropped_lines) + " lines of rank " + std::to_string(rank) +
                    " not shown" + (path.empty() ? "" : " (see " + path + ")"));
    }
  }
  return all;
}

}  // namespace

std::unique_ptr<Output> Output::make(boost::asio::io_context& loop, const Options& options,
                                     const std::string& job_id, Handlers handlers) {
  return std::make_unique<ConsoleOutput>(loop, options, job_id, std::move(handlers));
}

}  // namespace ivy
