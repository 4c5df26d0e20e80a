package tianzhou.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Writes one line of JSON: text, numbers, truth values, lists and maps. */
final class Json {
    private Json() {
    }

    /** A map from alternating names and values. */
    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            made.put((String) pairs[i], pairs[i + 1]);
        }
        return made;
    }

    static String write(Object value) {
        StringBuilder text = new StringBuilder();
        append(text, value);
        return text.toString();
    }

    private static void append(StringBuilder text, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            text.append(value);
        } else if (value instanceof Map) {
            String between = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                text.append(between);
                quote(text, String.valueOf(entry.getKey()));
                text.append(": ");
                append(text, entry.getValue());
                between = ", ";
            }
            text.append(between.equals("{") ? "{}" : "}");
        } else if (value instanceof List) {
            String between = "[";
            for (Object item : (List<?>) value) {
                text.append(between);
                append(text, item);
                between = ", ";
            }
            text.append(between.equals("[") ? "[]" : "]");
        } else {
            quote(text, value.toString());
        }
    }

    private static void quote(StringBuilder text, String value) {
        text.append('"');
        for (char letter : value.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                text.append('\\').append(letter);
            } else if (letter < ' ' || letter > '~') {
                text.append(String.format("\\u%04x", (int) letter));
            } else {
                text.append(letter);
            }
        }
        text.append('"');
    }
}
