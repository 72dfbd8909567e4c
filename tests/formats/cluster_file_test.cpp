// Clusters as files: the presets are sound, writing and reading is the identity, every fault of a file is named.
#include "cuboid/formats/cluster_file.h"

#include <gtest/gtest.h>

namespace cuboid {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_cluster_file(text, "mine.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(ClusterFile, WritingAndReadingIsTheIdentity) {
  ASSERT_FALSE(cluster_names().empty());
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = load_cluster(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(parse_cluster_file(write_cluster_file(cluster), "written"), cluster) << name;
  }
}

TEST(ClusterFile, WhatAFileLeavesOutComesFromItsBase) {
  const Cluster base = load_cluster("dgx-a100");
  const Cluster mine = parse_cluster_file(
      "name = 'mine'\nbase = 'dgx-a100'\n[device]\nmemory-bytes = 3e10\n[stack]\ntp-overlap = 0.25\n", "mine.toml");
  Cluster expected = base;
  expected.name = "mine";
  expected.device.memory_bytes = 30'000'000'000;
  expected.stack.tp_overlap = 0.25;
  EXPECT_EQ(mine, expected);
}

TEST(ClusterFile, NamesEveryFaultAtOnce) {
  const std::string why = refusal(
      "base = 'dgx-a100'\n[device]\nmemory-byte = 80\nmemory-bandwidth = -2e12\nname = 7\n"
      "[stack]\ntp-overlap = 1.5\nflash-attention = 'yes'\n[[levels]]\nname = 'node'\nsize = 8\nlink-bandwidth = 3e11\n"
      "[[levels]]\nname = 'fabric'\nsize = 12\nlink-bandwidth = 0.0\n[extra]\n");
  for (const char* part :
       {"line 3: device: unknown key memory-byte; the nearest is memory-bytes",
        "device: memory-bandwidth = -2000000000000.0", "line 5: device: name = 7: must be a string",
        "stack: tp-overlap = 1.5: must be from 0 to 1",
        "line 8: stack: flash-attention = \"yes\": must be true or false", "unknown key extra",
        "level 2 (fabric): size = 12.0: must be a larger multiple of 8", "level 2 (fabric): link-bandwidth = 0.0"}) {
    EXPECT_NE(why.find(part), std::string::npos) << part << "\nin\n" << why;
  }
}

TEST(ClusterFile, RefusesWhatIsNoFileOrPreset) {
  EXPECT_NE(refusal("levels = 3").find("[[levels]]"), std::string::npos);
  EXPECT_NE(refusal("device = 3").find("[device]"), std::string::npos);
  EXPECT_NE(refusal("base = 'dgx'").find("must be a preset: dgx-a100"), std::string::npos);
  EXPECT_NE(refusal("name = ").find("line 1: not valid TOML"), std::string::npos);
  EXPECT_NE(refusal("").find("levels: at least one"), std::string::npos);
  try {
    load_cluster("dgx-h1000");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the nearest preset is dgx-h100"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cuboid
