package tianzhou.interop;

import java.util.LinkedHashMap;
import java.util.Map;

/** A line of standard input: verb, name, and options NAME=VALUE, separated by tabs. */
final class Command {
    final String verb;
    final String name;
    private final Map<String, String> options = new LinkedHashMap<>();

    Command(String line) {
        String[] fields = line.split("\t", -1);
        verb = fields[0];
        name = fields[1];
        for (int i = 2; i < fields.length; i++) {
            int at = fields[i].indexOf('=');
            options.put(fields[i].substring(0, at), fields[i].substring(at + 1));
        }
    }

    boolean has(String option) {
        return options.containsKey(option);
    }

    String get(String option) {
        return get(option, null);
    }

    String get(String option, String otherwise) {
        return options.getOrDefault(option, otherwise);
    }

    int number(String option, int otherwise) {
        return has(option) ? Integer.parseInt(get(option)) : otherwise;
    }

    /** Options that begin so, without this beginning. */
    Map<String, String> below(String beginning) {
        Map<String, String> found = new LinkedHashMap<>();
        options.forEach((option, value) -> {
            if (option.startsWith(beginning)) {
                found.put(option.substring(beginning.length()), value);
            }
        });
        return found;
    }
}
