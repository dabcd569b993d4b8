// SPDX-License-Identifier: Apache-2.0
// show() filters and splits a source's bytes. put() formats a finished line, or gives it to the
// LineFold. begin_line() prepares the place for a line: it writes the rank's held lines first,
// clears the footer, closes the open line of another source, and writes the label. All text goes
// through out(), the buffer of the sink.
#include "launcher/screen/console.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "launcher/report/folded_ranks.h"
#include "launcher/screen/terminal.h"
#include "proto/contract/remote_text.h"
#include "proto/contract/text.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr std::string_view kReset = "\x1b[0m";
constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kLineUp = "\x1b[A";
// Limit of visible progress bars. If there are more, each rank shows only its outermost bar. If
// there are still too many, only the bar of the slowest rank is shown.
constexpr std::size_t kMaxBars = 4;

bool has_escape(std::string_view text) { return text.find('\x1b') != std::string_view::npos; }

// Returns the number before the first percent sign, or nullopt.
std::optional<int> percent_of(std::string_view text) {
  const std::size_t sign = text.find('%');
  if (sign == std::string_view::npos) return std::nullopt;
  std::size_t first = sign;
  while (first > 0 && text[first - 1] >= '0' && text[first - 1] <= '9') --first;
  if (first == sign || sign - first > 3) return std::nullopt;
  return std::stoi(std::string(text.substr(first, sign - first)));
}

std::string_view marker(const ConsoleStyle& style) { return style.utf8 ? "\u2026" : "..."; }

}  // namespace

Console::Console(boost::asio::io_context& loop, int fd, ConsoleEvents& owner)
    : owner_(owner), sink_(loop, fd, *this), fd_(fd) {}

void Console::sink_progressed() {
  release_grants();
  owner_.console_has_room();
}

void Console::sink_failed(int errno_value) {
  release_grants();
  owner_.console_failed(errno_value);
}

void Console::set_style(const ConsoleStyle& style) { style_ = style; }

void Console::flush() {
  sink_.flush();
  release_grants();
}

void Console::release_grants() {
  while (!grants_.empty() && grants_.front().end <= sink_.written()) {
    const Grant grant = grants_.front();
    grants_.pop_front();
    owner_.console_consumed(grant.host_index, grant.bytes);
  }
}

void Console::show(OutputSource& source, std::string_view bytes) {
  const std::uint64_t count = bytes.size();
  if (style_.filters_controls || (style_.filters_moves && !source.label.empty()))
    bytes = source.filter.apply(bytes);
  if (style_.pass_through) {
    pass(source, bytes);
  } else {
    while (const auto piece = source.lines.next(bytes)) put(source, *piece);
    if (source.lines.is_update()) source.state_is_new = true;
  }
  // Bytes of an unfinished line count as consumed, too: otherwise a host whose ranks all print long
  // lines without an end would never get credit again. LineSplitter limits their number.
  if (!grants_.empty() && grants_.back().host_index == source.host_index &&
      grants_.back().end == sink_.appended()) {
    grants_.back().bytes += count;
  } else {
    grants_.push_back(Grant{sink_.appended(), count, source.host_index});
  }
}

void Console::pass(OutputSource& source, std::string_view bytes) {
  if (bytes.empty()) return;
  begin_text();
  out().append(bytes);
  open_ = bytes.back() == '\n' ? nullptr : &source;
}

void Console::put(OutputSource& source, const LinePiece& given) {
  LinePiece piece = given;
  // torch prefixes the lines of a traceback with "[rank3]: ", which only repeats the label.
  if (!source.label.empty() && !piece.continued && piece.text.starts_with("[rank")) {
    const std::string own = "[rank" + std::to_string(source.rank) + "]:";
    if (piece.text.starts_with(own)) {
      piece.text.remove_prefix(own.size());
      if (piece.text.starts_with(' ')) piece.text.remove_prefix(1);
    }
  }
  if (piece.end == LineEnd::kTooLong) ++source.cut_lines;
  if (states_.erase({source.rank, source.stream}) > 0) footer_changed_ = true;
  // Another rank's line has closed this line, and only its newline is left.
  if (piece.continued && piece.text.empty() && open_ != &source) return;
  if (style_.folds && !piece.continued && piece.end != LineEnd::kTooLong && open_ != &source) {
    // The held bytes count as consumed: LineFold limits their number.
    labels_[{source.rank, source.stream}] = source.label;
    fold_.add(source.rank, source.stream, piece.text, monotonic_ns());
    return release(monotonic_ns());
  }
  begin_line(source);
  std::string& text = out();
  text.append(piece.text);
  if (style_.is_terminal && (open_is_coloured_ || has_escape(piece.text))) text.append(kReset);
  if (piece.end == LineEnd::kTooLong) text.append(marker(style_));
  text += '\n';
  open_ = nullptr;
  open_is_coloured_ = false;
}

void Console::release(std::int64_t until_ns) {
  while (const auto group = fold_.take_due(until_ns)) write_group(*group);
}

void Console::write_group(const LineFold::Group& group) {
  begin_text();
  close_open_line();
  if (style_.timestamps) append_clock();
  const std::string_view label = labels_[{group.ranks.front(), group.stream}];
  std::string folded(label);
  if (group.ranks.size() > 1 && !label.empty())
    folded = (group.stream == 2 ? "[!" : "[") + folded_ranks(group.ranks) + "]";
  // Labels of several ranks have the colour of the first rank.
  if (group.ranks.size() > 1 && label.starts_with('\x1b'))
    folded = std::string(label.substr(0, label.find('m') + 1)) + folded + std::string(kReset);
  if (group.ranks.size() > 1 && !label.empty()) folded += ' ';
  // A traceback has several lines; each gets the label.
  std::string_view rest = group.text;
  for (bool is_first = true; is_first || !rest.empty(); is_first = false) {
    if (style_.timestamps && !is_first) append_clock();
    const std::string_view line = take_part(rest, '\n');
    out().append(folded).append(line);
    if (style_.is_terminal && has_escape(line)) out().append(kReset);
    out() += '\n';
  }
}

void Console::show_partial(OutputSource& source) {
  const std::string text = source.lines.take_partial();
  if (text.empty()) return;
  begin_line(source);
  out().append(text);
  open_ = &source;
  open_is_coloured_ = open_is_coloured_ || has_escape(text);
}

void Console::show_state(OutputSource& source) {
  source.state_is_new = false;
  if (style_.is_terminal) {
    footer_changed_ = true;
    std::vector<std::string> rows;
    for (const std::string_view row : source.lines.state())
      rows.push_back(source.label + std::string(row));
    // An empty state: the bar has blanked itself out.
    if (rows.empty())
      states_.erase({source.rank, source.stream});
    else
      states_[{source.rank, source.stream}] = std::move(rows);
    return;
  }
  for (const std::string_view row : source.lines.take_new_state()) {
    begin_line(source);
    out().append(row);
    out() += '\n';
    open_ = nullptr;
  }
}

void Console::end_source(OutputSource& source) {
  while (const auto piece = source.lines.finish()) put(source, *piece);
}

void Console::cut_source(OutputSource& source) {
  while (auto piece = source.lines.finish()) {
    piece->end = LineEnd::kTooLong;
    put(source, *piece);
  }
}

void Console::print(std::string_view text) {
  if (text.empty()) return;
  release(LineFold::kAnyTime);
  begin_text();
  close_open_line();
  out().append(escape_control(text));
  if (text.back() != '\n') out() += '\n';
}

void Console::clear_footer() {
  out().append(kClearLine);
  for (; footer_lines_ > 1; --footer_lines_) out().append(kLineUp).append(kClearLine);
  footer_lines_ = 0;
}

// Clears the footer before text is written there; draw_footer() draws it again.
void Console::begin_text() {
  if (footer_lines_ == 0) return;
  clear_footer();
  footer_changed_ = true;
}

// Returns the status line, or else the progress bars: if there are too many, only those that
// kMaxBars allows.
std::vector<std::string> Console::footer_text() const {
  // The last column stays empty: some terminals wrap as soon as it is filled.
  const int columns = terminal_columns(fd_) - 1;
  if (!status_.empty()) return {clip_to_columns(status_, columns)};
  std::vector<std::string> lines;
  std::size_t bars = 0;
  for (const auto& [source, rows] : states_) bars += rows.size();
  if (states_.size() <= kMaxBars) {
    for (const auto& [source, rows] : states_)
      for (std::size_t row = 0; row < (bars <= kMaxBars ? rows.size() : 1); ++row)
        lines.push_back(clip_to_columns(rows[row], columns));
    return lines;
  }
  const std::string* slowest = nullptr;
  int lowest = 0;
  for (const auto& [source, rows] : states_) {
    const std::optional<int> percent = percent_of(rows.front());
    if (!percent || (slowest != nullptr && *percent >= lowest)) continue;
    slowest = &rows.front();
    lowest = *percent;
  }
  const std::string count = std::to_string(states_.size()) + " bars)";
  const std::string more = (slowest != nullptr ? " (slowest of " : " (first of ") + count;
  if (slowest == nullptr) slowest = &states_.begin()->second.front();
  lines.push_back(clip_to_columns(*slowest, std::max(columns - static_cast<int>(more.size()), 1)));
  if (has_escape(lines.back())) lines.back().append(kReset);
  lines.back() += more;
  return lines;
}

void Console::begin_line(OutputSource& source) {
  if (open_ == &source) return;
  while (const auto group = fold_.take_if_printed_by(source.rank)) write_group(*group);
  begin_text();
  close_open_line();
  if (style_.timestamps) append_clock();
  out().append(source.label);
}

// Closes the open line with a marker, so that the lines of two ranks are never joined.
void Console::close_open_line() {
  if (open_ == nullptr) return;
  if (style_.is_terminal) out().append(kReset);
  if (!style_.pass_through) out().append(marker(style_));
  out() += '\n';
  open_ = nullptr;
  open_is_coloured_ = false;
}

void Console::append_clock() {
  const std::int64_t milliseconds = wall_ms();
  if (milliseconds / 1000 != clock_second_) {
    clock_second_ = milliseconds / 1000;
    const std::time_t now = static_cast<std::time_t>(clock_second_);
    std::tm local{};
    localtime_r(&now, &local);
    char text[16];
    const std::size_t size = std::strftime(text, sizeof text, "%H:%M:%S.", &local);
    clock_text_.assign(text, size);
  }
  char thousandth[8];
  std::snprintf(thousandth, sizeof thousandth, "%03d ", static_cast<int>(milliseconds % 1000));
  out().append(clock_text_).append(thousandth);
}

void Console::set_status(const std::string& text) {
  const std::string line = RemoteText(text).line();
  if (line == status_) return;
  status_ = line;
  footer_changed_ = true;
}

void Console::draw_footer() {
  // The footer would overwrite an open line, and a slow reader needs no animation.
  if (!footer_is_due() || open_ != nullptr || !is_idle()) return;
  footer_changed_ = false;
  const std::vector<std::string> lines = footer_text();
  if (lines.empty() && footer_lines_ == 0) return;
  clear_footer();
  for (const std::string& line : lines) {
    if (&line != &lines.front()) out() += '\n';
    out().append(line);
    if (has_escape(line)) out().append(kReset);
  }
  footer_lines_ = lines.size();
  flush();
}

void Console::forget_sources() {
  release(LineFold::kAnyTime);
  labels_.clear();
  begin_text();
  close_open_line();
  states_.clear();
}

}  // namespace ivy
