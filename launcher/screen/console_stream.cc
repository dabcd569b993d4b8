// SPDX-License-Identifier: Apache-2.0
// Output takes this way: accept() → process() → Console, or first through queue_, which drain()
// empties whenever the console has room (console_has_room(), flush()). The timer's part is
// await_partial(), which sets a source's due_ns; arm(), which keeps the timer at the earliest due
// time; and on_timer(), which shows what is due.
#include "launcher/screen/console_stream.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>

#include "launcher/screen/terminal.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
// Time without further bytes after which an unfinished line is shown. It is short on a terminal,
// where a user may have to answer a prompt. It is longer in a file or a pipe, so that the line of a
// rank that gets no processor for a moment is not split in two.
constexpr std::int64_t kPartialDelayOnTerminal = 200 * kMillisecond;
constexpr std::int64_t kPartialDelayOtherwise = 1000 * kMillisecond;
// Period at which the newest state of a progress bar is shown on a terminal, and elsewhere.
constexpr std::int64_t kStateDelayOnTerminal = 200 * kMillisecond;
constexpr std::int64_t kStateDelayOtherwise = 5000 * kMillisecond;
// Minimum time between two drawings of a terminal's footer: 10 Hz.
constexpr std::int64_t kDrawDelay = 100 * kMillisecond;
// --console-overflow=drop: lines are dropped while more than this waits for the reader.
constexpr std::size_t kDropAboveBytes = 1u << 20;
// Raw bytes formatted in one step: labels make text larger, so a large chunk of short lines would
// take much memory.
constexpr std::size_t kSliceBytes = 64u << 10;
// Formatted text is written without waiting for the end of the turn once there is this much of it.
constexpr std::size_t kFlushBytes = 64u << 10;
// A rank's line that was followed by at most this many lines is still visible on the console.
constexpr std::uint64_t kJustPrintedLines = 3;

std::uint64_t newlines_in(std::string_view bytes) {
  return static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), '\n'));
}

}  // namespace

ConsoleStream::ConsoleStream(boost::asio::io_context& loop, int fd, const OutputOptions& options,
                             ConsoleStreamEvents& owner)
    : loop_(loop),
      fd_(fd),
      options_(options),
      owner_(owner),
      console_(loop, fd, *this),
      timer_(loop) {
  console_.set_style(style());
}

void ConsoleStream::console_has_room() {
  drain();
  owner_.stream_progressed();
}

ConsoleStyle ConsoleStream::style() const {
  ConsoleStyle style;
  style.is_terminal = is_capable_terminal(fd_);
  style.filters_controls = isatty(fd_) != 0 && !options_.raw;
  style.filters_moves = !style.filters_controls && !options_.raw;
  style.timestamps = options_.timestamps;
  style.folds = options_.dedup.value_or(style.is_terminal);
  style.utf8 = locale_is_utf8();
  return style;
}

void ConsoleStream::begin(bool is_single) {
  while (!queue_.empty()) process_front();
  console_.forget_sources();
  waiting_.clear();
  sources_.clear();
  shown_count_[0] = shown_count_[1] = 0;
  ConsoleStyle next = style();
  next.pass_through = is_single && !next.timestamps;
  next.filters_moves = next.filters_moves && !next.pass_through;
  console_.set_style(next);
}

void ConsoleStream::add(OutputSource& source) {
  const ConsoleStyle& style = console_.style();
  source.filter = ControlFilter(style.pass_through    ? ControlPolicy::kNoStrings
                                : style.filters_moves ? ControlPolicy::kPiped
                                                      : ControlPolicy::kColoursAndUp);
  source.lines.set_groups(style.filters_controls || (style.filters_moves && !source.label.empty()));
  if (source.label.empty() && !console_.style().is_terminal)
    source.lines.set_max_line_bytes(LineSplitter::kMaxPlainLineBytes);
  source.number = static_cast<std::uint32_t>(sources_.size());
  sources_.push_back(&source);
  if (source.is_shown) ++shown_count_[source.stream == 2 ? 1 : 0];
  console_.fold().set_rank_count(std::max(shown_count_[0], shown_count_[1]));
}

void ConsoleStream::accept(OutputSource& source, std::string_view bytes, bool end) {
  if (console_.has_failed()) return owner_.stream_consumed(source.host_index, bytes.size());
  if (options_.overflow == OverflowChoice::kDrop) bytes = drop_some(source, bytes);
  // Bytes that can be shown immediately are not copied into the queue.
  while (!bytes.empty() && queue_.empty() && console_.has_room()) {
    const std::string_view slice = bytes.substr(0, kSliceBytes);
    bytes.remove_prefix(slice.size());
    process(source, ChunkKind::kBytes, slice);
  }
  queue_.push(source.number, ChunkKind::kBytes, bytes);
  if (end) enqueue_end(source);
}

void ConsoleStream::enqueue_end(OutputSource& source) {
  if (queue_.empty()) return process(source, ChunkKind::kEnd, {});
  queue_.push(source.number, ChunkKind::kEnd, {});
}

void ConsoleStream::end_sources() {
  if (console_.has_failed()) return;
  for (OutputSource* source : sources_)
    if (source->is_shown) enqueue_end(*source);
  if (queue_.empty()) console_.release(LineFold::kAnyTime);
}

// Returns the bytes to keep, with --console-overflow=drop. Only whole lines are dropped: while the
// queue is too long (kDropAboveBytes), a chunk is kept up to the end of the line whose beginning
// was kept before, and the rest is dropped. If that line has no end in this chunk, it is cut (kCut)
// and its rest is dropped, too. Once the queue is short again, the source continues with the next
// whole line.
std::string_view ConsoleStream::drop_some(OutputSource& source, std::string_view bytes) {
  if (bytes.empty()) return bytes;
  const bool is_full = queue_.bytes() > kDropAboveBytes;
  const std::size_t newline = bytes.find('\n');
  const bool has_newline = newline != std::string_view::npos;
  std::string_view kept = bytes;
  // Starts to drop.
  if (!source.is_dropping && is_full) {
    if (source.is_in_line && !has_newline) queue_.push(source.number, ChunkKind::kCut, {});
    kept = bytes.substr(0, source.is_in_line && has_newline ? newline + 1 : 0);
    source.is_dropping = kept.size() < bytes.size();
    drop(source, bytes.substr(kept.size()));
    // Continues to drop; a line whose beginning was dropped is dropped to its end.
  } else if (source.is_dropping && (is_full || (source.lost_in_line && !has_newline))) {
    kept = {};
    drop(source, bytes);
  } else if (source.is_dropping) {
    // Stops dropping: the next whole line is shown.
    source.is_dropping = false;
    const std::size_t rest_of_line = source.lost_in_line ? newline + 1 : 0;
    kept = bytes.substr(rest_of_line);
    drop(source, bytes.substr(0, rest_of_line));
  }
  source.is_in_line = !kept.empty() && kept.back() != '\n';
  return kept;
}

void ConsoleStream::drop(OutputSource& source, std::string_view bytes) {
  if (bytes.empty()) return;
  source.lost_in_line = bytes.back() != '\n';
  source.dropped_lines += newlines_in(bytes);
  owner_.stream_consumed(source.host_index, bytes.size());
}

void ConsoleStream::process(OutputSource& source, ChunkKind kind, std::string_view bytes) {
  if (kind == ChunkKind::kBytes) {
    lines_ += newlines_in(bytes);
    source.last_line = lines_;
    console_.show(source, bytes);
    await_partial(source);
    arm_held();
  } else if (kind == ChunkKind::kEnd) {
    console_.end_source(source);
    arm_held();
  } else {
    console_.cut_source(source);
  }
  schedule_flush();
}

void ConsoleStream::process_front() {
  const ChunkQueue::Front front = queue_.front(kSliceBytes);
  process(*sources_[front.source], front.kind, front.bytes);
  queue_.pop(front.bytes.size());
}

void ConsoleStream::drain() {
  while (!queue_.empty() && console_.has_room()) {
    process_front();
    console_.flush();
  }
}

void ConsoleStream::flush() {
  console_.flush();
  drain();
}

// Writes small chunks that arrive in the same turn of the loop together.
void ConsoleStream::schedule_flush() {
  if (console_.unwritten() >= kFlushBytes) return console_.flush();
  if (std::exchange(flush_scheduled_, true)) return;
  boost::asio::post(loop_, [this, alive = alive_] {
    if (!*alive) return;
    flush_scheduled_ = false;
    flush();
    arm_footer();
    owner_.stream_progressed();
  });
}

void ConsoleStream::console_failed(int errno_value) {
  while (!queue_.empty()) {
    const ChunkQueue::Front front = queue_.front(kSliceBytes);
    owner_.stream_consumed(sources_[front.source]->host_index, front.bytes.size());
    queue_.pop(front.bytes.size());
  }
  owner_.stream_failed(*this, errno_value);
}

bool ConsoleStream::was_just_printed(const OutputSource& source) const {
  return source.last_line && source.dropped_lines == 0 && queue_.empty() &&
         !console_.has_failed() && lines_ - *source.last_line <= kJustPrintedLines;
}

std::int64_t ConsoleStream::state_delay() const {
  return console_.style().is_terminal ? kStateDelayOnTerminal : kStateDelayOtherwise;
}

std::int64_t ConsoleStream::partial_delay() const {
  return console_.style().is_terminal ? kPartialDelayOnTerminal : kPartialDelayOtherwise;
}

void ConsoleStream::await_partial(OutputSource& source) {
  if (console_.style().pass_through || !source.lines.has_partial()) return;
  const bool is_update = source.lines.is_update();
  // A progress bar is shown at a fixed rate, from its first change on. Any other unfinished line is
  // shown once its rank has been silent for a while, so each of its bytes postpones it.
  if (!is_update) {
    source.due_ns = monotonic_ns() + partial_delay();
  } else if (!source.is_waiting || !source.due_is_for_state) {
    source.due_ns = monotonic_ns() + state_delay();
  }
  source.due_is_for_state = is_update;
  if (!std::exchange(source.is_waiting, true)) waiting_.push_back(&source);
  arm(source.due_ns);
}

// Shows the source's unfinished line if it is due. Returns whether the source stays in waiting_.
bool ConsoleStream::show_due(OutputSource& source, std::int64_t now_ns) {
  if (!source.lines.has_partial()) return false;
  if (source.due_ns > now_ns || !console_.has_room()) {
    // A source that is not due yet, or has no room, is checked again after half of the delay at the
    // earliest: one timer serves all sources.
    source.due_ns = std::max(source.due_ns, now_ns + partial_delay() / 2);
    return true;
  }
  if (!source.lines.is_update()) {
    console_.show_partial(source);
    schedule_flush();
    return false;
  }
  // The bar has not changed since it was last shown: the source waits again when its next bytes
  // arrive.
  if (!source.state_is_new) return false;
  console_.show_state(source);
  schedule_flush();
  source.due_ns = now_ns + state_delay();
  return true;
}

void ConsoleStream::arm(std::int64_t due_ns) {
  if (timer_due_ns_ != 0 && timer_due_ns_ <= due_ns) return;
  timer_due_ns_ = due_ns;
  timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(due_ns)));
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (!error && *alive) on_timer();
  });
}

void ConsoleStream::arm_footer() {
  if (console_.footer_is_due()) arm(last_drawn_ns_ + kDrawDelay);
}

// --dedup: arms the timer for the oldest held line.
void ConsoleStream::arm_held() {
  if (const auto due = console_.fold().due_ns()) arm(*due);
}

// Shows everything that is due, and arms the timer for the rest.
void ConsoleStream::on_timer() {
  timer_due_ns_ = 0;
  const std::int64_t now_ns = monotonic_ns();
  if (console_.fold().due_ns()) {
    console_.release(now_ns);
    schedule_flush();
    arm_held();
  }
  std::erase_if(waiting_, [&](OutputSource* source) {
    source->is_waiting = show_due(*source, now_ns);
    return !source->is_waiting;
  });
  if (console_.footer_is_due()) {
    console_.draw_footer();
    last_drawn_ns_ = now_ns;
    arm_footer();
  }
  for (const OutputSource* source : waiting_) arm(source->due_ns);
}

void ConsoleStream::print(std::string_view text) {
  console_.print(text);
  console_.flush();
  arm_footer();
}

void ConsoleStream::set_status(const std::string& text) {
  console_.set_status(text);
  if (text.empty()) console_.draw_footer();
  arm_footer();
}

}  // namespace ivy
