// Words for messages: the nearest of several names, lists, numbers as they are written back exactly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cuboid {

/// Edit distance: insertions, deletions, substitutions and exchanges of neighbours count 1 each (optimal string
/// alignment; Damerau 1964), letters of either case are equal.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest edit distance to word, the first of equals; "" without candidates.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "a, b, c".
std::string join(const std::vector<std::string>& items, std::string_view separator = ", ");

/// "1 rank", "3 ranks"; a plural that is more than an s is named: counted(2, "batch", "batches").
std::string counted(long long number, std::string_view one, std::string_view several = "");

/// "optimizer_steps" as people read it: "optimizer steps".
std::string spaced(std::string key);

/// Reasons, one a line, that name a file, with the flag that named it in front: "--data a.txt: is empty". A line that
/// begins with a flag already stays as it is.
std::string naming(std::string_view flag, std::string_view reasons);

/// The parts between separators, one more than there are of them. @pre the text outlives them
std::vector<std::string_view> split(std::string_view text, char separator);

/// The shortest decimal that reads back as the same double, with a point or exponent: "0.1", "1.0", "1e-08", "inf".
std::string exact(double value);

}  // namespace cuboid
